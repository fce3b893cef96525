"""The shape of a decoder-only language model, and what follows from it: parameters, FLOPs, activations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from training.config import ModelConfig

# Model types whose MLP is two matrices; in all others a gate makes it three.
_TWO_MATRIX_MLP = {"gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "falcon", "phi", "starcoder2"}
# Model types that tie embedding and head where their config does not say.
_TIED_BY_DEFAULT = {"gpt2", "opt", "bloom", "falcon", "gemma", "gemma2", "gemma3_text"}


class UnknownShapeError(ValueError):
    """The config lacks what the model of memory and time needs; the message names it."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only transformer; `intermediate` is the width of its MLP."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    positions: int | None = None
    mlp_matrices: int = 3
    qkv_bias: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """The shape in a transformers config (`config.to_dict()` or the contents of config.json).

        Raises:
            UnknownShapeError: for a mixture of experts, or where a size is missing.
        """
        text = {**config, **(config.get("text_config") or {})}
        kind = str(text.get("model_type", ""))
        for key in ("num_experts", "num_local_experts", "n_routed_experts"):
            if text.get(key):
                raise UnknownShapeError(f"{kind or 'the model'} is a mixture of experts ({key} {text[key]})")
        hidden, heads = _size(text, "hidden_size", "n_embd"), _size(text, "num_attention_heads", "n_head")
        plain = kind in _TWO_MATRIX_MLP
        usual_width = 4 * hidden if plain else None
        return cls(
            layers=_size(text, "num_hidden_layers", "n_layer"),
            hidden=hidden,
            intermediate=_size(text, "intermediate_size", "n_inner", "ffn_dim", or_else=usual_width),
            heads=heads,
            kv_heads=_size(text, "num_key_value_heads", or_else=heads),
            head_dim=_size(text, "head_dim", or_else=hidden // heads),
            vocab=_size(text, "vocab_size"),
            tied=bool(text.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT)),
            positions=text.get("max_position_embeddings") or text.get("n_positions"),
            mlp_matrices=2 if plain else 3,
            qkv_bias=kind == "qwen2" or bool(text.get("attention_bias")),
        )

    @property
    def layer_matrices(self) -> int:
        """Parameters of one decoder layer that take part in matrix products."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + self.mlp_matrices * self.hidden * self.intermediate

    @property
    def layer_parameters(self) -> int:
        """All parameters of one decoder layer: its matrices, two norms, and biases of q, k and v."""
        bias = self.head_dim * (self.heads + 2 * self.kv_heads) if self.qkv_bias else 0
        return self.layer_matrices + 2 * self.hidden + bias

    @property
    def root_parameters(self) -> int:
        """Parameters in no layer: embedding, head where it is not the embedding, last norm."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.root_parameters

    def layer_forward_flops(self, sequence: int) -> float:
        """FLOPs a token of one layer's forward pass, causal attention counted at half its square."""
        return 2.0 * self.layer_matrices + 2.0 * self.heads * self.head_dim * sequence

    @property
    def head_flops(self) -> float:
        """FLOPs a token of the head: logits, gradient of hidden, gradient of weight, all in the forward pass."""
        return 6.0 * self.vocab * self.hidden

    def flops_per_token(self, sequence: int) -> float:
        """Training FLOPs a token as MFU counts them: recomputation not included."""
        return 3.0 * self.layers * self.layer_forward_flops(sequence) + self.head_flops

    @property
    def layer_activation_bytes(self) -> int:
        """Bytes a token that one compiled layer keeps for its backward pass, in bf16.

        The MLP's gate and up (or its one product); input and the middle residual; q, k, v and the attention's
        output. What costs no matrix product is computed again (training/parallel.py).
        """
        attention = 2 * self.heads * self.head_dim + 2 * self.kv_heads * self.head_dim
        return 2 * ((self.mlp_matrices - 1) * self.intermediate + 2 * self.hidden + attention)

    @property
    def fp8_layer_activation_bytes(self) -> int:
        """The same with fp8 products: also their inputs, a byte each (what norms, attention and gate give)."""
        return self.layer_activation_bytes + self.intermediate + 2 * self.hidden + self.heads * self.head_dim

    @property
    def eager_layer_activation_bytes(self) -> int:
        """The same without compile: also the activation function's output and its product, k and v as projected,
        and of both norms the output, and the input in fp32."""
        again = 2 * self.intermediate + 4 * self.hidden + 4 * self.kv_heads * self.head_dim
        return self.layer_activation_bytes + again + 2 * self.intermediate + 8 * self.hidden


def known_shape(model: ModelConfig) -> ModelShape | None:
    """The shape without network: inline, from a folder, or from our list; None for any other model.

    Raises:
        UnknownShapeError: if an inline or local config lacks a size, or is a mixture of experts.
    """
    if model.architecture is not None:
        return ModelShape.from_config(model.architecture)
    local = Path(model.name) / "config.json"
    if local.is_file():
        return ModelShape.from_config(json.loads(local.read_text()))
    known = _known().get(model.name)
    return None if known is None else ModelShape.from_config(known)


@cache
def _known() -> dict[str, dict[str, Any]]:
    return json.loads((Path(__file__).parent / "shapes.json").read_text())["shapes"]


def _size(text: Mapping[str, Any], *names: str, or_else: int | None = None) -> int:
    value = next((text[name] for name in names if text.get(name)), or_else)
    if not isinstance(value, int):
        raise UnknownShapeError(f"the model's config has no {names[0]}")
    return value
