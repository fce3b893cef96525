"""Any causal language model of transformers, as one module that returns its loss.

The model stays as transformers wrote it; parallelism, recompute and compile are applied from outside
(parallel.py). Only the head is ours: the lm_head and the loss are computed together in chunks, so that
the logits of the whole batch never exist.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from training import model_folder
from training.config import ModelConfig
from training.errors import JobError, first_line
from training.loss import linear_cross_entropy
from training.working import WorkingWeights


class CausalLMWithLoss(nn.Module):
    """A transformers causal LM whose forward pass ends in the loss.

    `self.model` is the untouched transformers model: its state dict has the names that
    `from_pretrained` reads.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.working: WorkingWeights | None = None
        """On one rank, the copy that forward and backward run on; None where FSDP gathers and casts."""
        self.logit_scale, self.softcap = _logit_shape(model)

    @property
    def head(self) -> nn.Linear:
        """The output projection; its weight may be the embedding's."""
        return self.model.get_output_embeddings()  # pyright: ignore[reportReturnType]

    def forward(self, input_ids: Tensor, labels: Tensor, position_ids: Tensor | None = None) -> Tensor:
        """Sum of the token losses.

        Args:
            input_ids: [batch, sequence] token ids.
            labels: [batch, sequence], the token that follows each input; -100 does not count.
            position_ids: [batch, sequence]; where they start again a document starts, and transformers'
                attention masks do not look across. None: one document a sequence.

        Returns:
            fp32 scalar: the sum, not the mean, so that ranks and micro-batches can be averaged exactly.
        """
        apart = {} if position_ids is None else {"position_ids": position_ids}
        output = backbone(self.model)(input_ids=input_ids, use_cache=False, **apart)
        hidden = output.last_hidden_state.flatten(0, 1)
        head = self.head
        hidden = hidden.to(head.weight.dtype)
        if self.logit_scale != 1.0:
            hidden = hidden * self.logit_scale
        return linear_cross_entropy(
            hidden, head.weight, labels.flatten(), bias=head.bias, softcap=self.softcap
        )


def read_config(model: ModelConfig) -> PretrainedConfig:
    """The model's transformers config: inline, from a folder or S3, or from the Hub at the pinned revision.

    Raises:
        JobError: naming the model and what transformers found wrong.
    """
    if model.architecture is not None:
        return _inline_config(model.architecture)
    folder = model_folder.small_files(model_folder.of_model(model))
    if not (folder / "config.json").is_file():
        raise JobError(f"training.model.name {model.name} holds no config.json; name a Hugging Face folder")
    try:
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise JobError(f"training.model.name {model.name}: its config.json cannot be used: {first_line(error)}"
                       ) from error


def empty_model(config: PretrainedConfig) -> CausalLMWithLoss:
    """The model without memory (meta device), in training mode.

    Raises:
        JobError: if transformers has no causal LM of that kind, or its head is not one we know.
    """
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, **_attention(config))
    except ValueError as error:
        kind = getattr(config, "model_type", "?")
        why = first_line(error)
        raise JobError(f"training.model: model type {kind} cannot be built as a causal LM: {why}") from error
    return CausalLMWithLoss(model).train()


def _attention(config: PretrainedConfig) -> dict[str, str]:
    """Which attention of transformers to use, where its own choice would change the mathematics.

    PyTorch's fused attention has no soft cap, and transformers (5.13) leaves Gemma 2's out in silence.
    """
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return {"attn_implementation": "eager"} if capped else {}


def backbone(model: PreTrainedModel) -> nn.Module:
    """The part of a causal LM below its head."""
    found = getattr(model, model.base_model_prefix, None)
    if found is None or found is model:
        raise JobError(f"training.model: {type(model).__name__} has no part named {model.base_model_prefix!r} "
                       "below its head")
    return found


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of decoder layers: the outermost ModuleList as long as the config has layers.

    Raises:
        JobError: if the model keeps its layers in another way.
    """
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    for module in backbone(model).modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise JobError(f"training.model: {type(model).__name__} has no ModuleList of {count} decoder layers to shard")


def outer_norms(model: PreTrainedModel) -> list[nn.Module]:
    """The norms that are in no decoder layer: as a rule one, before the head."""
    return [part for part in backbone(model).children()
            if not list(part.children()) and {p.ndim for p in part.parameters()} == {1}]


def check_fits(config: PretrainedConfig, sequence_length: int) -> None:
    """Raises JobError if the sequences are longer than the model's positions."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    if positions and sequence_length > positions:
        raise JobError(f"training.sequence_length {sequence_length} is beyond the model's {positions} positions; "
                       f"use {positions} or less")


def check_documents_apart(trained: CausalLMWithLoss) -> None:
    """Raises JobError if the model cannot keep documents apart: no positions go in, or it is not all attention."""
    config = trained.model.config.get_text_config()
    recurrent = {kind for kind in getattr(config, "layer_types", None) or () if "attention" not in kind
                 or kind == "linear_attention"}
    if "position_ids" not in inspect.signature(backbone(trained.model).forward).parameters or recurrent:
        raise JobError(f"training.data.documents apart: {type(trained.model).__name__} cannot keep documents apart "
                       "inside a sequence; use joined")


def check_precision(config: PretrainedConfig, precision: str) -> None:
    """Raises JobError for fp8 on a mixture of experts: its routers and experts are not nn.Linear alone."""
    if precision == "fp8" and is_mixture(config):
        raise JobError(f"training.precision fp8 is for dense models, and {config.model_type} is a mixture of "
                       "experts; use bf16")


def is_mixture(config: PretrainedConfig) -> bool:
    """Whether the config is of a mixture of experts."""
    text = config.get_text_config()
    return any(getattr(text, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def uses_dropout(config: PretrainedConfig) -> bool:
    """Whether any dropout probability of the config is above zero."""
    return any(isinstance(value, float) and value > 0 and ("dropout" in key or key.endswith("pdrop"))
               for key, value in config.to_dict().items())


def _inline_config(architecture: dict[str, Any]) -> PretrainedConfig:
    fields = dict(architecture)
    kind = fields.pop("model_type")
    if kind not in CONFIG_MAPPING:
        near = difflib.get_close_matches(str(kind), list(CONFIG_MAPPING), n=1)
        hint = f"did you mean {near[0]}?" if near else "for example qwen2 or llama"
        raise JobError(f"training.model.architecture.model_type {kind} is unknown to transformers; {hint}")
    config_class = CONFIG_MAPPING[kind]
    known = {f.name for f in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    for key in fields:
        # transformers accepts any key in silence, so a slip of the pen would build another model
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.9)
        if key not in known and near:
            raise JobError(f"training.model.architecture.{key} is unknown to {kind}; did you mean {near[0]}?")
    try:
        return AutoConfig.for_model(kind, **fields)
    except (TypeError, ValueError) as error:
        raise JobError(f"training.model.architecture: {first_line(error)}") from error


class _Output:
    """What a backbone returns, as far as the model's head may look: hidden states, and nothing else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _FixedHidden(nn.Module):
    """Stands in for a backbone and returns the same hidden states whatever it is given."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    @property
    def decoder(self) -> nn.Module:
        """OPT's head asks the backbone's decoder."""
        return self

    def forward(self, *_: Any, **__: Any) -> _Output:
        return _Output(self.hidden)


def _logit_shape(model: PreTrainedModel) -> tuple[float, float | None]:
    """How the model turns `head(hidden)` into logits: a factor and a soft cap.

    Found by asking the model itself: its own forward runs once over a small known hidden state and a
    small known head, so a head that does anything else is refused and never trained wrongly.
    """
    name = type(model).__name__
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        raise JobError(f"training.model: {name} has no linear output head; its loss cannot be computed in chunks")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, 4, head.in_features, generator=generator)
    stub = nn.Linear(head.in_features, 16, bias=head.bias is not None)
    with torch.no_grad():
        for parameter in stub.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        raw = stub(hidden)
        logits = _logits_with(model, _FixedHidden(hidden), head, stub)
    if logits is not None and logits.shape == raw.shape:
        factor = float((logits * raw).sum() / (raw * raw).sum())
        if torch.allclose(logits, raw * factor, rtol=1e-4, atol=1e-4):
            return (1.0 if abs(factor - 1) < 1e-5 else factor), None
        softcap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        if softcap and torch.allclose(logits, softcap * torch.tanh(raw / softcap), rtol=1e-4, atol=1e-4):
            return 1.0, float(softcap)
    raise JobError(f"training.model: {name} computes its logits in a way this trainer does not know "
                   "(known: a linear head, with a factor or final_logit_softcapping)")


def _logits_with(model: PreTrainedModel, body: nn.Module, head: nn.Module, stub: nn.Module) -> Tensor | None:
    """The model's logits with its backbone and head exchanged for the length of one call."""
    own = backbone(model)
    head_name = next(name for name, module in model.named_modules() if module is head)
    holder = model.get_submodule(head_name.rpartition(".")[0])
    attribute = head_name.rpartition(".")[2]
    try:
        setattr(model, model.base_model_prefix, body)
        setattr(holder, attribute, stub)
        output = model(input_ids=torch.zeros(1, 4, dtype=torch.long))
        return output.logits.float()
    except (AttributeError, TypeError, RuntimeError, ValueError):
        return None
    finally:
        setattr(holder, attribute, head)
        setattr(model, model.base_model_prefix, own)
