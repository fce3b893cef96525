"""What to train and where: the contents of train.json, the one file that the job reads.

`TrainConfig` is the user's (the `training:` part of a settings file). `Placement` is derived from the
infrastructure, so that GPU counts and storage are written once. Both together are a `TrainJob`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from training.field_types import AUTO, Count, Steps, Strict, with_exponent
from training.sections import (
    CheckpointConfig,
    DataConfig,
    FabricConfig,
    HangConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    TransportConfig,
)

TURN_TIMEOUT, TIME_LIMIT = "EAGLERAY_TURN_TIMEOUT_S", "EAGLERAY_TIME_LIMIT_S"
"""Variables of a job: seconds that it waits for its turn, and that it may take from then on."""


class TrainConfig(Strict):
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
    hang: HangConfig = HangConfig()
    """The watch for ranks that hang."""
    steps: Steps = Field(default=200, ge=1)
    """Optimizer steps."""
    tokens: Annotated[int | None, BeforeValidator(with_exponent)] = Field(default=None, ge=1)
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
    export: Literal["none", "bf16", "fp32"] = "none"
    """The model as a Hugging Face folder in the run's `model/` after the last step: in bf16, in fp32, or none."""

    def digest(self) -> str:
        """Twelve hex digits over all that decides what is trained; wire, patience and what is kept do not."""
        beside = {"checkpoint", "transport", "fabric", "hang", "max_skipped_steps", "export"}
        return digest(self.model_dump(mode="json", exclude=beside))

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

    @model_validator(mode="after")
    def _storage_that_fails_is_no_hang(self) -> TrainConfig:
        # A save that is due waits for the one before, and where that failed for its own end too (checkpointing.py).
        limit, retry = self.hang.checkpoint_minutes, self.checkpoint.retry_minutes
        if limit <= 2 * retry:
            raise ValueError(f"hang.checkpoint_minutes {limit:g} is not above twice checkpoint.retry_minutes "
                             f"{retry:g}: training may wait for two saves in a row, each tried again for that "
                             "long, and would be ended as hanging meanwhile; use checkpoint.retry_minutes below "
                             f"{limit / 2:g}, or more hang.checkpoint_minutes")
        return self


class Rented(Strict):
    """What bills by the hour while a job runs, for its cost; the number of its nodes is the placement's."""

    region: str
    """AWS region."""
    instance_type: str
    """Type of the GPU nodes."""
    capacity: str
    """How they are obtained: a kind of gpu.capacity."""
    system_type: str
    """Type of the system nodes."""
    system_nodes: int = Field(ge=1)
    """System nodes."""
    control_plane: Literal["standard", "extended"]
    """Support of the EKS version, which its price follows."""


class Placement(Strict):
    """Where the job runs. Derived from the infrastructure settings, never written by hand."""

    nodes: int = Field(ge=1)
    """Worker nodes."""
    min_nodes: int | None = Field(default=None, ge=1)
    """The fewest that the run goes on with when nodes are lost; none: all of them."""
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
    rented: Rented | None = None
    """What bills by the hour; none: nothing does, as on a laptop."""

    @model_validator(mode="after")
    def _backend_has_its_device(self) -> Placement:
        if self.backend == "nccl" and self.device == "cpu":
            raise ValueError("backend nccl needs device cuda; with device cpu use backend gloo")
        return self

    @model_validator(mode="after")
    def _fewer_are_fewer(self) -> Placement:
        if self.min_nodes is not None and self.min_nodes >= self.nodes:
            raise ValueError(f"min_nodes {self.min_nodes} is not below nodes {self.nodes}; leave it out where all "
                             "nodes are needed")
        return self

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.workers_per_node

    @property
    def fewest_nodes(self) -> int:
        """Nodes that the run needs at least."""
        return self.nodes if self.min_nodes is None else self.min_nodes

    @property
    def is_elastic(self) -> bool:
        """Whether the run goes on with fewer nodes than it has at full size."""
        return self.min_nodes is not None


class TrainJob(Strict):
    """train.json: a training and its place."""

    name: str = Field(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; checkpoints lie under `<storage>/<name>`."""
    training: TrainConfig
    """What to train."""
    placement: Placement
    """Where."""

    @model_validator(mode="after")
    def _efa_can_be_proven(self) -> TrainJob:
        if self.training.transport.require == "efa":
            if self.placement.fewest_nodes == 1:
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
