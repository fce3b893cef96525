"""Over which wire did the bytes of a job go? The verdict, from the logs of its ranks.

    evidence = read_logs([Path("/tmp/nccl")])     # or one rank's own files, gathered with Evidence.merge
    found = verdict(evidence)
    found.verdict, found.reasons                  # "efa" | "tcp" | "error" | "unproven", and why

`efa` needs proof from every rank: that aws-ofi-nccl selected provider efa, that each channel to another node goes
over Libfabric, and no line that says otherwise. What is not recognised is never taken for proof. Standard library
only: it runs in the pods, before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from training.transport_evidence import Evidence, Process
from training.transport_judgement import findings
from training.transport_reader import TransportReader, read_logs
from training.transport_reasons import REASONS

__all__ = ["Evidence", "Process", "RankTransport", "Reason", "TransportReader", "Verdict", "read_logs", "verdict"]

Wire = Literal["efa", "tcp", "error", "unproven"]


@dataclass(frozen=True)
class Reason:
    """Why a verdict is what it is: `code` (of transport_reasons.py), what was seen, how to mend it, which ranks."""

    code: str
    detail: str
    mend: str
    ranks: Sequence[int] = ()

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}; {self.mend}"


@dataclass(frozen=True)
class RankTransport:
    """How one rank reached the others.

    `rank` is the one in the job, None where its log does not tell. `provider` is Libfabric's, `network` NCCL's,
    both None where not seen; `channels` counts them by transport (NET/Libfabric, NET/Socket, P2P, SHM);
    `gdr` is None where the log does not tell; `errors` are codes of reasons.
    """

    rank: int | None
    host: str
    pid: int
    provider: str | None
    plugin: str | None
    network: str | None
    channels: Mapping[str, int]
    gdr: bool | None
    errors: Sequence[str]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a whole run. `world_size` is None where neither caller nor log told it."""

    verdict: Wire
    reasons: Sequence[Reason]
    ranks: Sequence[RankTransport]
    world_size: int | None = None
    nccl: Sequence[str] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists, for json.dumps and summary.json."""
        return {
            "verdict": self.verdict,
            "reasons": [{**asdict(reason), "ranks": list(reason.ranks)} for reason in self.reasons],
            "ranks": [{**asdict(rank), "errors": list(rank.errors)} for rank in self.ranks],
            "world_size": self.world_size,
            "nccl": list(self.nccl),
        }


def verdict(evidence: Evidence, world_size: int | None = None) -> Verdict:
    """Judge what was read.

    Args:
        evidence: of all ranks; of one rank alone, the verdict is about that rank and says so.
        world_size: number of ranks that the job has, where the caller knows it: then all of them must prove it.
    """
    found = findings(evidence, world_size)
    reasons = [Reason(code, finding.detail, REASONS[code].mend, sorted(finding.ranks))
               for code in REASONS if (finding := found.reasons.get(code))]
    ranks = [_rank(rank, process, found.given.get((process.host, process.pid), []))
             for rank, process in found.ranks]
    nccl = sorted({process.nccl for process in evidence.processes.values() if process.nccl})
    return Verdict(found.wire, reasons, ranks, found.world_size, nccl)


def _rank(rank: int | None, process: Process, errors: Sequence[str]) -> RankTransport:
    channels = process.transports(rank if len(process.own_ranks()) > 1 else None)
    networks = process.networks | {name[4:] for name in process.transports() if name.startswith("NET/")}
    networks |= {"Socket"} if "socket_prepared" in process.faults else set()
    return RankTransport(
        rank, process.host, process.pid, ", ".join(sorted(process.providers)) or None, process.plugin or None,
        ", ".join(sorted(networks)) or None, dict(sorted(channels.items())), process.uses_gdr(), errors)
