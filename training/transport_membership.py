"""Who took part in a job, by its logs: ranks, nodes, and who is missing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from training.transport_evidence import Evidence, Process


@dataclass(frozen=True)
class Membership:
    """`processes` are all that wrote; `members` those that took part in communication.

    `missing` says in words who is not in the logs, "" for nobody; `missing_ranks` are those of them that have a
    rank in the job. `one_rank_log`: one source that holds one rank, as NCCL_DEBUG_FILE does.
    `numbering_is_global`: each channel's ranks are those of the job, since there is one communicator.
    """

    processes: Sequence[Process]
    members: Sequence[Process]
    world_size: int | None
    single_node: bool
    one_rank_log: bool
    missing: str
    missing_ranks: Sequence[int]
    numbering_is_global: bool

    @property
    def hosts(self) -> set[str]:
        """Nodes, as NCCL tells them apart."""
        return {process.host for process in self.members}

    @property
    def ranks(self) -> list[tuple[int | None, Process]]:
        """Each rank and its process, by rank; None where the log does not tell it."""
        pairs = [(rank, process) for process in self.processes
                 for rank in (sorted(process.own_ranks()) or [None])]
        return sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0, pair[1].host, pair[1].pid))

    def ranks_of(self, processes: Iterable[Process]) -> set[int]:
        """The ranks of some processes, as far as known."""
        return {rank for process in processes for rank in process.own_ranks()}

    def named(self, processes: Sequence[Process]) -> str:
        """`rank 3 on node-a` or `ranks 0-3, 7`; by host and pid where ranks are not known."""
        ranks = sorted(self.ranks_of(processes))
        hosts = sorted({process.host for process in processes})
        if not ranks:
            shown = [f"{process.host}:{process.pid}" for process in processes]
            return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
        return in_words(ranks) + (f" on {hosts[0]}" if len(hosts) == 1 else "")


def in_words(ranks: Sequence[int]) -> str:
    """[0, 1, 2, 7] as `ranks 0-2, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:12])
    return ("rank " if len(set(ranks)) == 1 else "ranks ") + shown + (", ..." if len(spans) > 12 else "")


def membership(evidence: Evidence, world_size: int | None) -> Membership:
    """Who took part. `world_size` is the job's number of ranks, where the caller knows it."""
    processes = [process for _, process in sorted(evidence.processes.items())]
    members = [process for process in processes if process.joined()]
    world = max(world_size or 0, _world_size(members)) or None
    ranks = {rank for process in members for rank in process.own_ranks()}
    missing, missing_ranks = _missing(members, world, ranks)
    sizes = {size for process in members for _, size, _ in process.comms}
    nobody_knows = world_size is None and any(process.comms and not process.own_ranks() for process in members)
    return Membership(
        processes, members, None if nobody_knows else world, _on_one_node(members, world),
        world_size is None and evidence.sources == 1 and len(processes) == len(members) == 1 and len(ranks) <= 1,
        missing, missing_ranks, len(sizes) <= 1 and all(process.own_ranks() for process in members))


def _world_size(members: Sequence[Process]) -> int:
    """The largest number of ranks that communicators, channels and own ranks speak of; 0 for none."""
    sizes = [size for process in members for _, size, _ in process.comms]
    sizes += [max(channel.own, channel.peer) + 1 for process in members for channel in process.channels]
    sizes += [process.rank + 1 for process in members if process.rank is not None]
    return max(sizes, default=0)


def _missing(members: Sequence[Process], world: int | None, ranks: set[int]) -> tuple[str, list[int]]:
    largest = max((size for process in members for _, size, _ in process.comms), default=0)
    told = any(process.rank is not None for process in members)
    if world and (told or largest in (0, world)):
        absent = sorted(set(range(world)) - ranks)
        if absent:
            return f"{in_words(absent)} of {world}", absent
    elif world and sum(len(process.own_ranks()) or 1 for process in members) < world:
        return f"{len(members)} processes of {world}", []
    for (ident, size), claims in _groups(members).items():
        if size == largest and not ident and any(process.comms and not process.own_ranks() for process in members):
            return f"its communicators of {size} have no ids, so nobody can tell whether all are here", []
        most = max(len(claimants) for claimants in claims.values())
        absent = [rank for rank in range(size) if len(claims.get(rank, ())) < most]
        if absent:
            return f"{in_words(absent)} of a group of {size}", absent if size == world else []
    return "", []


def _groups(members: Sequence[Process]) -> dict[tuple[str, int], dict[int, set[tuple[str, int]]]]:
    """Who claims which rank in each communicator.

    A communicator without commId (NCCL before 2.16, children of ncclCommSplit) is known by its size alone: then
    several of one size are one group here, in which each rank must be claimed equally often.
    """
    groups: dict[tuple[str, int], dict[int, set[tuple[str, int]]]] = {}
    nameless = set()
    for process in members:
        named = {size for ident, size, _ in process.comms if ident}
        nameless |= {size for _, size, _ in process.comms} - named
    for process in members:
        for ident, size, rank in process.comms:
            for key in {(ident, size), ("", size)}:
                if key[0] or size in nameless:
                    groups.setdefault(key, {}).setdefault(rank, set()).add((process.host, process.pid))
    return groups


def _on_one_node(members: Sequence[Process], world: int | None) -> bool:
    """Whether nothing can have crossed the network: by NCCL's own count of nodes, or by what was connected."""
    channels = [channel for process in members for channel in process.channels]
    if not members or any(channel.between_nodes for channel in channels):
        return False
    one_host = len({process.host for process in members}) == 1
    comms = [(size, nodes) for process in members for (_, size, _), (nodes, *_) in process.comms.items() if nodes]
    if comms:
        return one_host and all(nodes == 1 for _, nodes in comms) and max(size for size, _ in comms) == world
    together = {rank for channel in channels for rank in (channel.own, channel.peer)}
    together |= {rank for process in members for rank in process.own_ranks()}
    return one_host and world is not None and together >= set(range(world))
