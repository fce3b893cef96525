"""What the prediction needs to know of the machines: GPUs from gpus.json, and how fast bytes move between them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from training.config import Placement

EFA_EFFICIENCY = 0.90
"""Share of a node's line rate that NCCL's rings get over EFA. Calibrated on AWS's sample, published 2026-10-28:
8.1 GB a step over 5 GB/s at 0.5173 steps/s (1.93 s), of which step_time.py finds 0.14 s beside the wire. Whole
step over bytes would be 0.84. Assumed to hold for other types."""
TCP_EFFICIENCY = 0.425
"""The same over TCP, from the sample's 0.2513 steps/s (3.98 s)."""
NVLINK_EFFICIENCY = 0.8
"""Share of nominal NVLink bandwidth in NCCL's rings: assumed."""
PCIE_EFFICIENCY = 0.375
"""The same for GPUs that meet through host memory (no peer access): assumed from 6 of 16 GB/s on PCIe 3,
https://github.com/NVIDIA/nccl/issues/406."""
CONTEXT_GIB = 1.25
"""Memory of a GPU that PyTorch's allocator never sees: CUDA context, NCCL's buffers. Assumed."""
FRAGMENTATION = 0.04
"""Share of a GPU's memory that the allocator cannot hand out in one piece. Assumed."""


class UnknownGpuError(ValueError):
    """gpus.json has no such GPU; the message names those it has."""


@dataclass(frozen=True)
class Gpu:
    """One entry of gpus.json; its `source` and `notes` say what the numbers are."""

    name: str
    device_name: str
    bf16_tflops: float
    memory_gb_s: float
    fp8: bool
    intra: Literal["nvlink", "pcie"]
    intra_gb_s: float
    achieved: float
    basis: Literal["measured", "assumed"]


@cache
def gpus() -> dict[str, Gpu]:
    """All GPUs by their name in the instance catalog."""
    rows = json.loads((Path(__file__).parent / "gpus.json").read_text())["gpus"]
    return {name: Gpu(name, **fields) for name, fields in rows.items()}


@dataclass(frozen=True)
class Hardware:
    """Equal nodes of equal GPUs. Rates are what collectives reach, in bytes and FLOPs a second.

    `link` is the network of one node in one direction, `intra` the path between two GPUs of a node.
    `reduce_scatter_cost` is 1 where a reduce-scatter moves what an all-gather moves (NCCL), 2 for gloo,
    whose reduce-scatter costs an all-reduce.
    """

    gpu: str
    nodes: int
    gpus_per_node: int
    memory: float
    peak_flops: float
    achieved: float
    memory_rate: float
    link: float
    intra: float
    reduce_scatter_cost: int = 1
    fp8: bool = False

    @property
    def world(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    @property
    def room(self) -> float:
        """Bytes of one GPU that tensors can have at all."""
        return self.memory - CONTEXT_GIB * 2**30

    @property
    def comfortable_room(self) -> float:
        """Bytes that tensors can have although the allocator wastes some: what automatic choices stay under."""
        return self.room - FRAGMENTATION * self.memory


def hardware_of(placement: Placement, link_efficiency: float = EFA_EFFICIENCY) -> Hardware | None:
    """The hardware of a placement; None on CPUs, or where the placement does not name its GPU.

    Raises:
        UnknownGpuError: if gpus.json lacks the GPU.
    """
    if placement.device != "cuda" or not (placement.gpu and placement.gpu_memory_mib and placement.link_mbps):
        return None
    if placement.gpu not in gpus():
        raise UnknownGpuError(f"placement.gpu {placement.gpu} is not in training/gpus.json, which has "
                              f"{', '.join(gpus())}; add its datasheet there")
    gpu = gpus()[placement.gpu]
    intra_efficiency = NVLINK_EFFICIENCY if gpu.intra == "nvlink" else PCIE_EFFICIENCY
    return Hardware(
        gpu=gpu.name,
        nodes=placement.nodes,
        gpus_per_node=placement.workers_per_node,
        memory=placement.gpu_memory_mib * 2.0**20,
        peak_flops=gpu.bf16_tflops * 1e12,
        achieved=gpu.achieved,
        memory_rate=gpu.memory_gb_s * 1e9 * 0.8,
        link=placement.link_mbps * 1e6 / 8 * link_efficiency,
        intra=gpu.intra_gb_s * 1e9 * intra_efficiency,
        fp8=gpu.fp8,
    )
