"""Weights, one decoder layer at a time: random by a seed, or pretrained and sent out by rank 0.

Every rank makes a layer whole, and parallel.py shards it before the next one is made. So a GPU holds its
shards and one whole layer, never the whole model. All ranks draw the same random numbers, whatever
their count.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from training.config import ModelConfig
from training.errors import JobError, together
from training.model import CausalLMWithLoss, first_line, hub_failure


class Weights:
    """Fills the parts of a meta-device model with fp32 parameters on `device`.

    Args:
        trained: the model, all of it on the meta device.
        device: where the weights go.
        seed: of the random weights.
        pretrained: on rank 0 the weights by name; on the other ranks only their dtypes. None: random.
    """

    def __init__(self, trained: CausalLMWithLoss, device: torch.device, seed: int,
                 pretrained: Pretrained | None = None) -> None:
        self._device, self._pretrained = device, pretrained
        self._owner = dict(_owners(trained.model))
        self._name = {module: name for name, module in trained.model.named_modules()}
        self._made: dict[nn.Parameter, nn.Parameter] = {}
        torch.manual_seed(seed)

    @torch.no_grad()
    def fill(self, part: nn.Module) -> None:
        """Make and fill all parameters and buffers of `part` that are still on the meta device.

        Raises:
            JobError: where the model's own initialisation leaves something unset.
        """
        fresh = [module for module in _post_order(part) if any(t.is_meta for t in _own_tensors(module))]
        for module in fresh:
            self._allocate(module)
        for module in fresh:
            owner = self._owner.get(module)
            if owner is not None:
                owner._init_weights(module)
        for module in fresh:
            for key, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is None:
                    continue
                name = f"{self._name.get(module, '')}.{key}".lstrip(".")
                if self._pretrained is not None:
                    self._pretrained.copy_into(name, tensor)
                if tensor.is_floating_point() and bool(torch.isnan(tensor).any()):
                    raise JobError(f"{name} is left unset by {type(self._owner[module]).__name__}'s "
                                   "own initialisation")

    def _allocate(self, module: nn.Module) -> None:
        for key, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                made = self._made.get(parameter)  # tied weights stay tied
                if made is None:
                    made = nn.Parameter(self._unset(parameter), requires_grad=parameter.requires_grad)
                    self._made[parameter] = made
                module._parameters[key] = made
        for key, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[key] = self._unset(buffer)

    def _unset(self, like: Tensor) -> Tensor:
        tensor = torch.empty_like(like, device=self._device)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.zero_()


class Pretrained:
    """The weights of a checkpoint, held by rank 0 in main memory and sent to the others tensor by tensor."""

    def __init__(self, state: dict[str, Tensor] | None) -> None:
        dtypes = [{name: tensor.dtype for name, tensor in state.items()} if state is not None else None]
        dist.broadcast_object_list(dtypes, src=0)
        self._state, self._dtypes = state, dtypes[0] or {}

    @classmethod
    def load(cls, model: ModelConfig, config: PretrainedConfig) -> Pretrained:
        """Read the weights of `model` on rank 0: one download for the whole job. Call on all ranks.

        Raises:
            AgreedError: if they cannot be had or do not fill the model.
        """
        return cls(together(lambda: _read_weights(model, config) if dist.get_rank() == 0 else None))

    def copy_into(self, name: str, target: Tensor) -> None:
        """Copy the checkpoint's tensor `name`, if it has one, into `target` on every rank."""
        dtype = self._dtypes.get(name)
        if dtype is None:
            return
        if self._state is not None:
            sent = self._state[name].to(target.device)
        else:
            sent = torch.empty(target.shape, dtype=dtype, device=target.device)
        dist.broadcast(sent, src=0)
        target.copy_(sent)


def _read_weights(model: ModelConfig, config: PretrainedConfig) -> dict[str, Tensor]:
    try:
        loaded, notes = AutoModelForCausalLM.from_pretrained(
            model.name, revision=model.revision, config=config, dtype="auto", output_loading_info=True
        )  # pyright: ignore[reportGeneralTypeIssues]
    except (OSError, ValueError) as error:
        raise JobError(hub_failure("training.model.name", model.name, model.revision, error)) from error
    except RuntimeError as error:
        raise JobError(f"training.model.name {model.name}: {first_line(error)}") from error
    missing = sorted(notes["missing_keys"])
    if missing:
        raise JobError(f"training.model.name {model.name}: the checkpoint lacks {len(missing)} of the model's "
                       f"weights, first {missing[0]}")
    return loaded.state_dict()


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from (p for p in module._parameters.values() if p is not None)
    yield from (b for b in module._buffers.values() if b is not None)


def _post_order(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _post_order(child)
    yield module


def _owners(model: PreTrainedModel) -> Iterator[tuple[nn.Module, PreTrainedModel]]:
    """Each module with the innermost transformers model around it, whose rules initialise it."""

    def walk(module: nn.Module, owner: PreTrainedModel) -> Iterator[tuple[nn.Module, PreTrainedModel]]:
        owner = module if isinstance(module, PreTrainedModel) else owner
        yield module, owner
        for child in module.children():
            yield from walk(child, owner)

    yield from walk(model, model)
