"""Weights, one decoder layer at a time: random by a seed, or read from pretrained files on this node.

Every rank makes a layer whole, and parallel.py shards it before the next one is made. So a GPU holds its
shards and one whole layer, never the whole model. All ranks draw the same random numbers, whatever
their count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from training.errors import JobError
from training.model import CausalLMWithLoss
from training.pretrained import Pretrained


class Weights:
    """Fills the parts of a meta-device model with fp32 parameters on `device`.

    Args:
        trained: the model, all of it on the meta device.
        device: where the weights go.
        seed: of the random weights.
        pretrained: the weights by name. None: random.
    """

    def __init__(self, trained: CausalLMWithLoss, device: torch.device, seed: int,
                 pretrained: Pretrained | None = None) -> None:
        self._device, self._pretrained = device, pretrained
        self._owner = dict(_owners(trained.model))
        self._name = {module: name for name, module in trained.model.named_modules()}
        named = trained.model.named_parameters(remove_duplicate=False)
        uses = Counter(parameter for _, parameter in named)
        # Of tied weights only: any other would stay whole in memory after its layer was sharded.
        self._tied: dict[nn.Parameter, nn.Parameter | None] = {p: None for p, count in uses.items() if count > 1}
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
                made = self._tied.get(parameter)
                if made is None:
                    made = nn.Parameter(self._unset(parameter), requires_grad=parameter.requires_grad)
                if parameter in self._tied:
                    self._tied[parameter] = made
                module._parameters[key] = made
        for key, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[key] = self._unset(buffer)

    def _unset(self, like: Tensor) -> Tensor:
        tensor = torch.empty_like(like, device=self._device)
        return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.zero_()


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
