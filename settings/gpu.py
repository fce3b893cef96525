"""The settings of the GPU nodegroup, and the rules between them."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator

from eagleray import catalog
from settings.capacity import Capacity, CapacityBlock, OnDemand
from settings.strict import Strict

# Share of a node's allocatable that the one worker pod asks for; the rest is for daemons and spikes.
# For g6.12xlarge (47810m, 178933Mi) this gives the AWS sample's 40 CPU and 160Gi.
_CPU_SHARE, _MEMORY_SHARE = 0.85, 0.92


class GpuSettings(Strict):
    """The GPU nodegroup and the Ray workers on it, one worker pod a node."""

    instance_type: str = "g6.12xlarge"
    """A type with GPUs and EFA."""
    nodes: int = Field(default=2, ge=1, le=1000)
    """Nodes."""
    min_nodes: int | None = Field(default=None, ge=1)
    """The fewest nodes that a job starts or goes on with when others are lost, until they are back; none: all."""
    volume_gib: int = Field(default=200, ge=100, le=16384)
    """Root volume in GiB."""
    capacity: Capacity = OnDemand()
    """How the instances are obtained."""
    idle_minutes: int = Field(default=5, ge=1, le=43200)
    """Minutes that GPU nodes stay once no job uses them; the next job brings them back. 43200 are 30 days."""
    worker_cpu: int | None = Field(default=None, ge=1)
    """CPUs of a worker pod; by default 85 % of what the node can give."""
    worker_memory_gib: int | None = Field(default=None, ge=1)
    """Memory of a worker pod in GiB; by default 92 % of what the node can give."""

    @field_validator("instance_type")
    @classmethod
    def _with_gpu_and_efa(cls, value: str) -> str:
        found = catalog.instance_type(value)
        lacks = "GPU" if not found.gpus else "EFA" if not found.efa else None
        if lacks:
            same = [t for t in catalog.efa_gpu_types() if catalog.instance_type(t).family == found.family]
            good = ", ".join((same or catalog.efa_gpu_types())[:3])
            raise ValueError(f"{value} has no {lacks}; use for example {good}")
        return value

    @model_validator(mode="after")
    def _fewer_are_fewer(self) -> GpuSettings:
        if self.min_nodes is not None and self.min_nodes >= self.nodes:
            ways = f"use {self.nodes - 1} or less, or leave it out: " if self.nodes > 1 else "leave it out: "
            raise ValueError(f"min_nodes {self.min_nodes} is not below nodes {self.nodes}; {ways}without it all "
                             "nodes are needed")
        return self

    @model_validator(mode="after")
    def _pod_fits_the_node(self) -> GpuSettings:
        node = self.instance
        if self.cpu * 1000 > node.alloc_cpu_m - 500:
            raise ValueError(f"worker_cpu {self.cpu} does not fit {node.type}; "
                             f"use {int((node.alloc_cpu_m - 500) / 1000)} or less")
        if self.memory_gib * 1024 > node.alloc_mem_mib - 1024:
            raise ValueError(f"worker_memory_gib {self.memory_gib} does not fit {node.type}; "
                             f"use {(node.alloc_mem_mib - 1024) // 1024} or less")
        return self

    @model_validator(mode="after")
    def _block_is_sold(self) -> GpuSettings:
        if isinstance(self.capacity, CapacityBlock) and not self.instance.capacity_block:
            sold = [t for t in catalog.efa_gpu_types() if catalog.instance_type(t).capacity_block]
            raise ValueError(f"capacity kind capacity-block: none are sold for {self.instance_type}; "
                             f"use another kind, or one of {', '.join(sold)}")
        return self

    @property
    def instance(self) -> catalog.InstanceType:
        """The catalog's entry."""
        return catalog.instance_type(self.instance_type)

    @property
    def cpu(self) -> int:
        """CPUs of a worker pod."""
        return self.worker_cpu or int(self.instance.alloc_cpu_m / 1000 * _CPU_SHARE)

    @property
    def memory_gib(self) -> int:
        """Memory of a worker pod in GiB."""
        return self.worker_memory_gib or int(self.instance.alloc_mem_mib / 1024 * _MEMORY_SHARE)
