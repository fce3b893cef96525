"""The all-reduce over all ranks that must pass before the model loads: are the sums right, and is it fast?

Bandwidths are bus bandwidths as nccl-tests defines them, bytes / seconds x 2(n-1)/n for n ranks: what a ring
sends over each of its hops in one direction. So they compare with the rate of a link, whatever n is.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import Placement
from training.hardware import UnknownGpuError, hardware_of
from training.side_channel import SideChannel, ranks_text

Result = TypeVar("Result")

MIB = 2**20
_GPU_SIZES = tuple(4**power * MIB for power in range(6))  # 1 MiB to 1 GiB
_CPU_SIZES = (MIB, 4 * MIB, 16 * MIB)
_CPU_SECONDS = 1.0
_MOST_REPEATS = 50
_DTYPES = (torch.bfloat16, torch.float32)
_EXACT = {torch.bfloat16: 2**8, torch.float32: 2**24}
"""Whole numbers up to here have a value of their own, so sums of them are exact in any order."""
_WEIGHTS = 7


@dataclass(frozen=True)
class Measured:
    """All-reduces of `size` bytes: `seconds` each on the slowest rank, `bus_gb_s` in 10^9 bytes a second."""

    size: int
    seconds: float
    repeats: int
    bus_gb_s: float


@dataclass(frozen=True)
class WrongSum:
    """A sum that came out wrong on `rank`; `sources` are the ranks whose part in it is wrong, where that shows."""

    rank: int
    size: int
    dtype: str
    sources: tuple[int, ...]


@dataclass(frozen=True)
class Reach:
    """What bandwidth the hardware should give. `floor_gb_s`: None where that is too uncertain to refuse on."""

    gb_s: float
    what: str
    floor_gb_s: float | None


@dataclass(frozen=True)
class Fabric:
    """What the check found, the same on all ranks."""

    measured: tuple[Measured, ...]
    wrong: tuple[WrongSum, ...]

    @property
    def best(self) -> Measured | None:
        """The size that was fastest; None if nothing was measured."""
        return max(self.measured, key=lambda m: m.bus_gb_s, default=None)


def connect(device: torch.device) -> None:
    """The first collective: it makes the ranks' connections, or fails."""
    tensor = torch.ones(MIB // 4, device=device)
    dist.all_reduce(tensor)
    _finish(device)


def measure(device: torch.device, channel: SideChannel, seconds: float, limit: float) -> Fabric:
    """Check sums, then time all-reduces, from small to large while there is time. Call on all ranks.

    Args:
        device: of this rank.
        channel: between all ranks.
        seconds: to spend, about; on a CPU at most one.
        limit: seconds after which the all-reduces of one size hang.

    Raises:
        AttemptError: if one fails or hangs.
    """
    def on_all(size: int, action: Callable[[], Result]) -> list[Result]:
        return channel.attempt(f"all-reduce of {size // MIB} MiB", limit, device, action)

    on_gpu = device.type == "cuda"
    sizes, budget = (_GPU_SIZES, seconds) if on_gpu else (_CPU_SIZES, min(seconds, _CPU_SECONDS))
    measured, wrong, spent = [], [], 0.0
    for size in sizes:
        wrong += [found for some in on_all(size, partial(_wrong_sums, size, device)) for found in some]
        if wrong:
            break
        once = max(on_all(size, partial(_time, size, 1, device)))
        # Half of the time is for repeats, the rest for the largest size; all ranks know the same times
        repeats = max(1, min(_MOST_REPEATS, int(budget / (2 * len(sizes)) / once)))
        each = max(on_all(size, partial(_time, size, repeats, device))) / repeats
        measured.append(Measured(size, each, repeats, bus_bandwidth(size, each, dist.get_world_size())))
        spent += once * (1 + len(_DTYPES)) + each * repeats
        if spent + 4 * each * (2 + len(_DTYPES)) > budget:
            break
    if on_gpu:  # the model needs the memory, and its peak is the training's
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return Fabric(tuple(measured), tuple(wrong))


def bus_bandwidth(size: int, seconds: float, world: int) -> float:
    """Bus bandwidth in GB/s of an all-reduce of `size` bytes: size / seconds x 2(n-1)/n."""
    return size / seconds * 2 * (world - 1) / world / 1e9


def reach(placement: Placement, wire: str, fraction: float) -> Reach | None:
    """What the hardware should give, and the floor at `fraction` of it; None where that is not known.

    A ring passes the link of each node and the path between its GPUs, and the slower one decides. Only the
    link makes a floor: training/gpus.json has nominal rates of the other, and what NCCL gets of them is assumed.
    Under NCCL nothing is expected of a wire that is not EFA: what TCP gets of a node depends on its cards.

    Args:
        wire: the verdict on the run's transport.
    """
    if placement.backend == "gloo":
        if placement.link_mbps is None or placement.nodes == 1:
            return None
        return _of_link(placement.link_mbps / 8e3, placement.link_mbps, fraction)
    try:
        hardware = hardware_of(placement)
    except UnknownGpuError:
        hardware = None
    if hardware is None or placement.world_size == 1 or (placement.nodes > 1 and wire != "efa"):
        return None
    link, intra = hardware.link / 1e9, hardware.intra / 1e9
    if placement.nodes > 1 and (placement.workers_per_node == 1 or link <= intra):
        return _of_link(link, placement.link_mbps or 0, fraction)
    return Reach(intra, f"the path between two {hardware.gpu} of a node", None)


def _of_link(gb_s: float, mbps: int, fraction: float) -> Reach:
    return Reach(gb_s, f"a node's link of {mbps / 1e3:g} Gbit/s", fraction * gb_s if fraction else None)


def too_slow(found: Fabric, expected: Reach | None) -> str | None:
    """Why the job is refused, in numbers; None if it is fast enough or nothing is known to compare with."""
    best = found.best
    if best is None or expected is None or expected.floor_gb_s is None or best.bus_gb_s >= expected.floor_gb_s:
        return None
    return (f"all-reduce over {dist.get_world_size()} ranks reaches {best.bus_gb_s:.2f} GB/s bus bandwidth "
            f"({best.size // MIB} MiB), and the floor is {expected.floor_gb_s:.2f} GB/s, "
            f"{expected.floor_gb_s / expected.gb_s:.0%} (training.fabric.floor_fraction) of the "
            f"{expected.gb_s:.2f} GB/s that {expected.what} should give")


def wrong_text(wrong: Sequence[WrongSum]) -> str:
    """Which sums are wrong, where, and whose part in them."""
    first = wrong[0]
    on = ranks_text(sorted({w.rank for w in wrong}))
    sources = sorted({source for w in wrong for source in w.sources})
    whose = f"what {ranks_text(sources)} gave did not arrive as it was sent" if sources \
        else "no single rank's part explains it"
    return f"all-reduce of {first.size // MIB} MiB in {first.dtype} gives wrong sums on {on}: {whose}"


def contribution(rank: int, world: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """What `rank` gives to a sum, and the sum of what all ranks give: [7 x world] each.

    Position p belongs to rank p % world, which gives a weight of 1 to 7 more there than the others: so a part
    that is lost, doubled, or meant for another place shows, and whose it is. All sums are exact in `dtype`.
    """
    position = torch.arange(_WEIGHTS * world, device=device)
    weight = 1 + position // world
    others = 1 if world + _WEIGHTS <= _EXACT[dtype] else 0
    mine = others + torch.where(position % world == rank, weight, 0)
    return mine.to(dtype), (others * world + weight).to(dtype)


def _wrong_sums(size: int, device: torch.device) -> list[WrongSum]:
    """All-reduce the contributions in each dtype; this rank's wrong sums."""
    rank, world = dist.get_rank(), dist.get_world_size()
    wrong = []
    for dtype in _DTYPES:
        mine, expected = contribution(rank, world, dtype, device)
        tensor = mine.repeat(max(1, size // (mine.nbytes)))
        dist.all_reduce(tensor)
        rows = tensor.view(-1, expected.numel())
        bad = (rows != expected).any(dim=1)
        if bad.any():
            row = rows[int(bad.nonzero()[0])]
            wrong.append(WrongSum(rank, size, str(dtype).removeprefix("torch."), _sources(row, expected, world)))
    return wrong


def _sources(row: Tensor, expected: Tensor, world: int) -> tuple[int, ...]:
    """Ranks at whose positions the sum is off by something else than at most others."""
    off = (row.float() - expected.float()).cpu()
    positions = (off != off.mode().values).nonzero().flatten()
    return tuple(sorted({int(p) % world for p in positions})) if off.isfinite().all() else ()


def _time(size: int, repeats: int, device: torch.device) -> float:
    """Seconds that `repeats` all-reduces of `size` bytes take on this rank."""
    tensor = torch.zeros(size // 4, device=device)
    _finish(device)
    began = time.perf_counter()
    for _ in range(repeats):
        dist.all_reduce(tensor)
    _finish(device)
    return time.perf_counter() - began


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
