"""Which pair of ranks is slow: exchanges between two ranks at a time, when the check over all ranks failed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from training.config import Placement
from training.side_channel import SideChannel

_GPU_BYTES, _CPU_BYTES = 32 * 2**20, 2**20
_REPEATS = 4
# Enough for each node to meet many others; all pairs of a thousand nodes would take too long.
_MOST_ROUNDS = 64


@dataclass(frozen=True)
class Pair:
    """Two ranks that sent each other bytes at the same time: GB/s in one direction, and whether they were right."""

    ranks: tuple[int, int]
    gb_s: float
    between_nodes: bool
    intact: bool


def rounds(nodes: int, per_node: int) -> Iterator[list[tuple[int, int]]]:
    """Pairs of ranks, round by round; in a round no rank, and between nodes no node, is in two pairs.

    First one rank a node with those of all other nodes, then inside the nodes, then the other ranks.
    """
    for local in range(per_node):
        for meeting in _tournament(nodes):
            yield [(a * per_node + local, b * per_node + local) for a, b in meeting]
        if local == 0:
            for meeting in _tournament(per_node):
                yield [(node * per_node + a, node * per_node + b) for node in range(nodes) for a, b in meeting]


def _tournament(players: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds in which each player meets each other once."""
    seats: list[int | None] = [*range(players), *([None] * (players % 2))]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        yield [(min(a, b), max(a, b)) for a, b in zip(seats[:half], reversed(seats[half:]), strict=True)
               if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


def probe(placement: Placement, device: torch.device, channel: SideChannel, limit: float) -> list[Pair]:
    """Let the ranks meet in pairs. Call on all ranks; the same result on all.

    Raises:
        AttemptError: if an exchange fails, or takes longer than `limit` seconds.
    """
    rank, per_node = dist.get_rank(), placement.workers_per_node
    found = []
    for meeting in islice(rounds(placement.nodes, per_node), _MOST_ROUNDS):
        peer = next((sum(pair) - rank for pair in meeting if rank in pair), None)
        shown = ", ".join(f"{a} and {b}" for a, b in meeting[:8])
        outcomes = channel.attempt(f"exchange between ranks {shown}", limit, device,
                                   partial(_meet, rank, peer, device))
        for a, b in meeting:
            rate = min(outcomes[a][0], outcomes[b][0])
            found.append(Pair((a, b), rate, a // per_node != b // per_node, outcomes[a][1] and outcomes[b][1]))
    return found


def _meet(rank: int, peer: int | None, device: torch.device) -> tuple[float, bool]:
    return (0.0, True) if peer is None else exchange(rank, peer, device)


def exchange(rank: int, peer: int, device: torch.device) -> tuple[float, bool]:
    """Send to and receive from `peer`: GB/s in one direction, and whether what came is what it sent."""
    elements = (_GPU_BYTES if device.type == "cuda" else _CPU_BYTES) // 4
    out = torch.full((elements,), float(rank), device=device)
    into = torch.full_like(out, -1)
    _swap(out, into, peer)  # the peer may come late
    began = time.perf_counter()
    for _ in range(_REPEATS):
        _swap(out, into, peer)
    seconds = time.perf_counter() - began
    return _REPEATS * out.nbytes / seconds / 1e9, bool((into == peer).all())


def _swap(out: Tensor, into: Tensor, peer: int) -> None:
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)])
    for work in works:
        work.wait()
    if out.is_cuda:
        torch.cuda.synchronize(out.device)


def slowest_text(pairs: Sequence[Pair], nodes: Sequence[str]) -> str:
    """The slowest pair of each kind beside the median one, a pair that damages bytes, a node that all find slow.

    Args:
        pairs: from `probe`.
        nodes: name of each rank's node, by rank.
    """
    parts = [f"{_named(p, nodes)} damage what they send each other" for p in pairs if not p.intact]
    for kind, between in (("between nodes", True), ("inside a node", False)):
        some = [pair for pair in pairs if pair.between_nodes == between]
        if some:
            slow = min(some, key=lambda pair: pair.gb_s)
            median = statistics.median(pair.gb_s for pair in some)
            others = f", the median of {len(some)} pairs {median:.2f}" if len(some) > 1 else ""
            parts.append(f"slowest pair {kind}: {_named(slow, nodes)} with {slow.gb_s:.2f} GB/s{others}")
    node = slow_node(pairs, nodes)
    if node:
        parts.append(f"node {node} is slow with all others: replace it")
    return "; ".join(parts)


def slow_node(pairs: Sequence[Pair], nodes: Sequence[str]) -> str | None:
    """The node whose best pair has less than half of what the best pairs of other nodes have; None: none."""
    best: dict[str, float] = {}
    for pair in pairs:
        if pair.between_nodes:
            for rank in pair.ranks:
                best[nodes[rank]] = max(best.get(nodes[rank], 0), pair.gb_s)
    if len(best) < 3:  # of two nodes nobody can say which
        return None
    worst = min(best, key=lambda name: best[name])
    return worst if best[worst] < statistics.median(best.values()) / 2 else None


def _named(pair: Pair, nodes: Sequence[str]) -> str:
    a, b = pair.ranks
    return f"ranks {a} ({nodes[a]}) and {b} ({nodes[b]})" if pair.between_nodes \
        else f"ranks {a} and {b} (both on {nodes[a]})"
