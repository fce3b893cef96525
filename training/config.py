"""What to train and where: the contents of train.json, the one file that the job reads.

`TrainConfig` is the user's (the `training:` part of a settings file). `Placement` is derived from the
infrastructure, so that GPU counts and storage are written once. Both together are a `TrainJob`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

AUTO: Any = "auto"
"""The value of a setting that training/topology.py chooses."""


def _count_or_auto(value: Any) -> Any:
    number = None if isinstance(value, bool) else _whole_number(value)
    if value != AUTO and (number is None or number < 1):
        raise ValueError("must be a whole number, 1 or more, or auto")
    return AUTO if value == AUTO else number


def _whole_number(value: Any) -> int | None:
    try:
        return int(value) if isinstance(value, str) or float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _with_exponent(value: Any) -> Any:
    """1.5e9 as a whole number: YAML reads it as text."""
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        return value
    return int(number) if isinstance(number, float) and number.is_integer() else value


def _switch_or_auto(value: Any) -> Any:
    if value is not True and value is not False and value != AUTO:
        raise ValueError("must be true, false or auto")
    return value


if TYPE_CHECKING:
    # To the type checker these are plain: training/topology.py has put a value in the place of every
    # `auto`, and steps in the place of tokens, before anything else of the trainer looks.
    Count = int
    Switch = bool
    Steps = int
else:
    Count = Annotated[int | Literal["auto"], BeforeValidator(_count_or_auto)]
    Switch = Annotated[bool | Literal["auto"], BeforeValidator(_switch_or_auto)]
    Steps = int | None  # None: they follow from `tokens`


class _Strict(BaseModel):
    """Unknown keys are errors; a docstring under a field is its description."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class ModelConfig(_Strict):
    """Which causal language model, and where its weights come from."""

    name: str = "Qwen/Qwen2.5-1.5B"
    """Hugging Face model id, or a folder that holds config.json."""
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
            if "model_type" not in self.architecture:
                raise ValueError("architecture lacks model_type; for example model_type: qwen2")
        return self


class DataConfig(_Strict):
    """Where the tokens come from."""

    kind: Literal["random", "text", "jsonl", "parquet", "hub", "tokens"] = "random"
    """`random` token ids (a throughput run); `text`, `jsonl` or `parquet` files; `hub`, a dataset of the Hub; or
    `tokens`, a folder that `eagleray tokenize` wrote."""
    path: str | None = None
    """A file, a folder or an s3:// prefix, read in name order; for `hub` the dataset's name."""
    revision: str | None = None
    """Commit of the dataset on the Hub (kind: hub)."""
    split: str = "train"
    """Split of the dataset on the Hub (kind: hub)."""
    tokenizer: str | None = None
    """Tokenizer for the text: a Hub id or a folder; by default the model's own."""
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


class OptimizerConfig(_Strict):
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


class ParallelConfig(_Strict):
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


class CheckpointConfig(_Strict):
    """When to save, and how much to keep."""

    every_steps: int = Field(default=100, ge=0)
    """Save after this many optimizer steps, and at the end; 0 saves only at the end."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints to keep."""


class TransportConfig(_Strict):
    """Which wire between nodes the training insists on."""

    require: Literal["auto", "efa", "any"] = "auto"
    """`efa` fails the job within its first minute unless every rank proves EFA; `any` trains over any wire
    and says which; `auto` is efa on several nodes with EFA interfaces, any elsewhere."""


class FabricConfig(_Strict):
    """The all-reduce over all ranks that must pass before the model loads."""

    seconds: float = Field(default=5, ge=0, le=600)
    """Seconds to measure bandwidth and check sums, at most 1 on CPUs; 0 only connects the ranks."""
    floor_fraction: float = Field(default=0.4, ge=0, le=1)
    """The job is refused below this fraction of what the nodes' link should give; 0 refuses nothing."""
    timeout_seconds: int = Field(default=60, ge=1, le=3600)
    """Seconds that ranks may take to arrive at the check, and to end their first all-reduce."""


class TrainConfig(_Strict):
    """Everything about the training that a user may set."""

    model: ModelConfig = ModelConfig()
    """The model."""
    data: DataConfig = DataConfig()
    """The data."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer."""
    parallel: ParallelConfig = ParallelConfig()
    """The parallelism."""
    precision: Literal["bf16", "fp8"] = "bf16"
    """Matrix products of the decoder layers in bf16, or in fp8 (GPUs from Ada and Hopper on): faster, and the loss
    stays within 1 %. All else is bf16 and the weights are fp32 either way."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """The checkpoints."""
    transport: TransportConfig = TransportConfig()
    """The wire between nodes."""
    fabric: FabricConfig = FabricConfig()
    """The check of the wire before the model loads."""
    steps: Steps = Field(default=200, ge=1)
    """Optimizer steps."""
    tokens: Annotated[int | None, BeforeValidator(_with_exponent)] = Field(default=None, ge=1)
    """Tokens to train on, in place of steps: the steps follow from the tokens of one step."""
    sequence_length: int = Field(default=2048, ge=8)
    """Tokens in one sequence."""
    micro_batch: Count = AUTO
    """Sequences a GPU processes at once, or auto."""
    accumulation: Count = AUTO
    """Micro-batches a GPU processes between two optimizer steps, or auto."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Seed of weights, data order and random tokens."""
    max_failures: int = Field(default=3, ge=0)
    """Worker failures that the run recovers from before it gives up."""
    max_skipped_steps: int = Field(default=5, ge=0)
    """Steps in a row that may be skipped because loss or gradient is not finite; one more ends the run."""

    def digest(self) -> str:
        """Twelve hex digits over all that decides what is trained; the wire, its check and patience do not."""
        return digest(self.model_dump(mode="json", exclude={"transport", "fabric", "max_skipped_steps"}))

    @model_validator(mode="before")
    @classmethod
    def _tokens_take_the_place_of_the_default_steps(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("tokens") is not None and "steps" not in data:
            return {**data, "steps": None}
        return data

    @model_validator(mode="after")
    def _length_is_said_once(self) -> TrainConfig:
        if self.steps is not None and self.tokens is not None:
            raise ValueError("steps and tokens both say how long the training is; leave one of them out")
        if self.steps is None and self.tokens is None:
            raise ValueError("steps is empty; say how long the training is in steps or in tokens")
        return self


class Placement(_Strict):
    """Where the job runs. Derived from the infrastructure settings, never written by hand."""

    nodes: int = Field(ge=1)
    """Worker nodes."""
    workers_per_node: int = Field(ge=1)
    """Ranks on each node: one a GPU."""
    device: Literal["cuda", "cpu"] = "cuda"
    """Device that every rank must have; a rank that lacks it fails."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """torch.distributed backend."""
    storage: str
    """s3:// URI or folder for checkpoints, metrics and the summary."""
    gpu: str | None = None
    """GPU by its name in training/gpus.json; none: not known, and nothing is predicted for it."""
    gpu_memory_mib: int | None = Field(default=None, ge=1)
    """Memory of one GPU in MiB."""
    link_mbps: int | None = Field(default=None, ge=1)
    """Network of one node in Mbit/s, all its cards together."""
    efa_per_node: int = Field(default=0, ge=0)
    """EFA interfaces of one node."""

    @model_validator(mode="after")
    def _backend_has_its_device(self) -> Placement:
        if self.backend == "nccl" and self.device == "cpu":
            raise ValueError("backend nccl needs device cuda; with device cpu use backend gloo")
        return self

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.workers_per_node


class TrainJob(_Strict):
    """train.json: a training and its place."""

    name: str
    """Name of the run; checkpoints lie under `<storage>/<name>`."""
    training: TrainConfig
    """What to train."""
    placement: Placement
    """Where."""

    @model_validator(mode="after")
    def _efa_can_be_proven(self) -> TrainJob:
        if self.training.transport.require == "efa":
            if self.placement.nodes == 1:
                raise ValueError("training.transport.require efa: on one node nothing crosses the network, so EFA "
                                 "cannot be proven; use auto")
            if self.placement.backend == "gloo":
                raise ValueError("training.transport.require efa: backend gloo moves bytes over TCP only; "
                                 "use auto or any")
        return self

    @property
    def requires_efa(self) -> bool:
        """Whether the job may train over EFA only."""
        place = self.placement
        by_default = place.backend == "nccl" and place.nodes > 1 and place.efa_per_node > 0
        return {"efa": True, "any": False, "auto": by_default}[self.training.transport.require]

    @property
    def tokens_per_step(self) -> int:
        """Tokens that all ranks together process in one optimizer step.

        Raises:
            ValueError: while a part of it is still `auto`.
        """
        t = self.training
        if AUTO in (t.micro_batch, t.accumulation):
            raise ValueError("training.micro_batch or training.accumulation is still auto; "
                             "training.topology.resolve chooses them")
        return t.micro_batch * t.accumulation * t.sequence_length * self.placement.world_size

    def config_hash(self) -> str:
        """Twelve hex digits over the training part: the same training has the same hash anywhere."""
        return self.training.digest()


def digest(value: Any) -> str:
    """First 12 hex digits of the SHA-256 of `value` as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
