"""The sections of a training's settings: model, data, optimizer, parallelism, checkpoints, the wire."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, model_validator

from training.field_types import AUTO, Strict, Switch


class ModelConfig(Strict):
    """Which causal language model, and where its weights come from."""

    name: str = "Qwen/Qwen2.5-1.5B"
    """Hugging Face model id, or a folder or s3:// prefix with config.json, tokenizer and safetensors."""
    revision: str = "8faed761d45a263340a0528343f099c05c9a4323"
    """Commit of the model on the Hub; a branch name works, but a run is then not repeatable."""
    weights: Literal["pretrained", "random"] = "pretrained"
    """`pretrained` loads the model's weights, `random` starts from its config with fresh ones."""
    architecture: dict[str, Any] | None = None
    """A transformers config written inline (`model_type` and its fields) instead of one read from
    `name`; needs `weights: random`."""

    @model_validator(mode="after")
    def _inline_architecture_has_no_weights(self) -> ModelConfig:
        if self.architecture is not None:
            if self.weights != "random":
                raise ValueError("an inline architecture has no pretrained weights; set weights to random")
            try:
                json.dumps(self.architecture, allow_nan=False)
            except (TypeError, ValueError):
                raise ValueError("architecture must hold what JSON has: text, finite numbers, true, false, null, "
                                 "lists and groups; put a date in quotes") from None
            if "model_type" not in self.architecture:
                raise ValueError("architecture lacks model_type; for example model_type: qwen2")
        return self


class DataConfig(Strict):
    """Where the tokens come from."""

    kind: Literal["random", "text", "jsonl", "parquet", "hub", "tokens"] = "random"
    """`random` token ids (a throughput run); `text`, `jsonl` or `parquet` files; `hub`, a dataset of the Hub; or
    `tokens`, a folder that `eagleray tokenize` wrote."""
    path: str | None = None
    """A file, a folder or an s3:// prefix, read in name order; for `hub` the dataset's name."""
    revision: str | None = None
    """Commit of the dataset on the Hub (kind: hub)."""
    subset: str | None = None
    """Subset (configuration) of the dataset on the Hub; by default its default or only one."""
    split: str = "train"
    """Split of the dataset on the Hub (kind: hub)."""
    tokenizer: str | None = None
    """Tokenizer for the text: a Hub id, a folder or an s3:// prefix; by default the model's own."""
    rows: Literal["text", "messages", "prompt"] = "text"
    """What a row holds: `text`; `messages`, a chat; or `prompt` and completion, two columns. Of the last two only
    the answers count in the loss."""
    column: str | None = None
    """Column of the text or the messages; by default text or messages."""
    documents: Literal["joined", "apart"] = "joined"
    """`apart`: no attention and no label crosses from one document to the next inside a sequence."""

    @model_validator(mode="after")
    def _files_need_a_path(self) -> DataConfig:
        if self.kind == "random":
            if self.path:
                raise ValueError("path is not read with kind: random; set kind to text or remove path")
            if self.documents == "apart":
                raise ValueError("random tokens have no documents; remove documents: apart")
        elif not self.path:
            raise ValueError(f"kind {self.kind} needs a path; for example path: /data/corpus")
        if self.rows != "text" and self.kind in ("random", "text"):
            raise ValueError(f"kind {self.kind} has no rows of {self.rows}; use jsonl, parquet or hub")
        if self.rows == "prompt" and self.column is not None:
            raise ValueError("rows: prompt reads the columns prompt and completion; remove column")
        return self


class OptimizerConfig(Strict):
    """AdamW with linear warm-up and cosine decay, on fp32 master weights."""

    learning_rate: float = Field(default=2e-5, gt=0, le=1)
    """Peak learning rate."""
    warmup_steps: int = Field(default=10, ge=0)
    """Optimizer steps of linear warm-up from zero."""
    final_fraction: float = Field(default=0.1, ge=0, le=1)
    """Learning rate at the last step, as a fraction of the peak."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay; not applied to norms and biases."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the second moment."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""


class ParallelConfig(Strict):
    """How the model is spread over the GPUs. `auto` is chosen by training/topology.py, with a reason."""

    sharding: Literal["auto", "full", "hybrid"] = AUTO
    """`full`: one shard group over all ranks. `hybrid` (HSDP): shard inside a node, all-reduce between."""
    reshard_after_forward: Switch = AUTO
    """Free the gathered parameters after the forward pass (true, false or auto): less memory, one more
    all-gather a step."""
    reduce_dtype: Literal["auto", "bf16", "fp32"] = AUTO
    """Precision of the gradient reduction between ranks."""
    recompute: Literal["auto", "none", "layers"] = AUTO
    """`layers` recomputes each decoder layer in the backward pass instead of keeping its activations."""
    compile: bool = True
    """torch.compile each decoder layer (on GPUs; ignored on CPU)."""


class CheckpointConfig(Strict):
    """When to save, and how much to keep."""

    every_steps: int = Field(default=100, ge=0)
    """Save after this many optimizer steps, and at the end; 0 saves only at the end."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints to keep."""
    keep_every: int = Field(default=0, ge=0)
    """Checkpoints of steps that this number divides are kept for good; 0 keeps none of them."""
    retry_minutes: float = Field(default=10, ge=0, le=1440)
    """Minutes for which a save is tried again where storage fails; the training goes on meanwhile."""


class HangConfig(Strict):
    """After how long without progress the workers are ended, and started again from the last checkpoint."""

    step_minutes: float = Field(default=5, gt=0, le=1440)
    """Minutes that a step may take, its data included."""
    checkpoint_minutes: float = Field(default=30, gt=0, le=1440)
    """Minutes that training may stand still for a checkpoint: more than twice checkpoint.retry_minutes."""
    start_minutes: float = Field(default=60, gt=0, le=1440)
    """Minutes from the first sign of all ranks to the end of the first step, with download and compilation."""


class TransportConfig(Strict):
    """Which wire between nodes the training insists on."""

    require: Literal["auto", "efa", "any"] = "auto"
    """`efa` fails the job within its first minute unless every rank proves EFA; `any` trains over any wire
    and says which; `auto` is efa on several nodes with EFA interfaces, any elsewhere."""


class FabricConfig(Strict):
    """The all-reduce over all ranks that must pass before the model loads."""

    seconds: float = Field(default=5, ge=0, le=600)
    """Seconds to measure bandwidth and check sums, at most 1 on CPUs; 0 only connects the ranks."""
    floor_fraction: float = Field(default=0.4, ge=0, le=1)
    """The job is refused below this fraction of what the nodes' link should give; 0 refuses nothing."""
    timeout_seconds: int = Field(default=60, ge=1, le=3600)
    """Seconds that ranks may take to arrive at the check, and to end their first all-reduce."""
