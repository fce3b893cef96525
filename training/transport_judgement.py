"""From evidence to a verdict: which faults count, and which ranks lack proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from training.transport_evidence import Evidence, Process
from training.transport_lines import EFA_PROVIDERS, LIBFABRIC, SOCKET, Speaker
from training.transport_membership import Membership, membership
from training.transport_reasons import REASONS

_NET = f"NET/{LIBFABRIC}"


@dataclass
class Finding:
    """One reason: what was seen, and on which ranks."""

    detail: str
    ranks: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Findings:
    """The verdict, its reasons by code, each rank with its process, and the reasons that each process gave."""

    wire: Literal["efa", "tcp", "error", "unproven"]
    reasons: dict[str, Finding]
    given: dict[Speaker, list[str]]
    ranks: list[tuple[int | None, Process]]
    world_size: int | None


def findings(evidence: Evidence, world_size: int | None) -> Findings:
    """The verdict on what was read; see transport.verdict."""
    who = membership(evidence, world_size)
    seen = _faults(evidence, who)
    found = {code: _fault(code, hits, who) for code, hits in seen.items()}
    decisive = {"error" if REASONS[code].weight == "fallback" else REASONS[code].weight
                for code, hits in seen.items() if any(hit.decides for hit in hits)}
    given: dict[Speaker, list[str]] = {}
    for code in (code for code in REASONS if code in seen):
        for speaker in {(hit.process.host, hit.process.pid) for hit in seen[code] if hit.process}:
            given.setdefault(speaker, []).append(code)
    if "tcp" in decisive or "error" in decisive:
        wire = "tcp" if "tcp" in decisive else "error"
    else:
        lacking = _lacking(evidence, who)
        found |= lacking
        wire = "unproven" if any(REASONS[code].weight == "unproven" for code in lacking) else "efa"
    return Findings(wire, found, given, who.ranks, who.world_size)


class _Hit(NamedTuple):
    """A fault that was seen: whose, if that is known, in which line, and whether it decides the verdict."""

    process: Process | None
    line: str
    decides: bool


def _faults(evidence: Evidence, who: Membership) -> dict[str, list[_Hit]]:
    """Faults by the reason that they are."""
    seen: dict[str, list[_Hit]] = {}
    for process in who.processes:
        for code, line in process.faults.items():
            for name, decides in _meant(code, process, evidence, who):
                seen.setdefault(name, []).append(_Hit(process, line, decides))
        for transport in process.transports():
            if "NET/" in transport and transport not in (_NET, f"NET/{SOCKET}"):
                seen.setdefault("other_network", []).append(_Hit(process, f"channels via {transport}", True))
    for code, line in evidence.unclaimed.items():
        for name, decides in _meant(code, None, evidence, who):
            seen.setdefault(name, []).append(_Hit(None, line, decides))
    if "efa_peer_lost" in seen and "efa_peer_unreachable" in seen:  # they had talked to each other
        seen["efa_peer_lost"] += seen.pop("efa_peer_unreachable")
    if seen.keys() & {"efa_peer_lost", "efa_peer_unreachable", "memlock_limit"}:
        seen.pop("efa_request_failed", None)
    if len(seen) > 1:
        seen.pop("nccl_failed", None)
    return seen


def _meant(code: str, process: Process | None, evidence: Evidence, who: Membership) -> list[tuple[str, bool]]:
    """The reason that a fault of a line stands for, and whether it decides: on a single node no wire was needed."""
    crosses = not who.single_node
    on_libfabric = process is not None and (_NET in process.transports() or LIBFABRIC in process.networks)
    if code == "socket_channel":
        return [("socket_network", True)]
    if code == "socket_prepared":  # NCCL 2.27 and later prepare a network only to use it
        stopped = process is not None and "network_not_found" in process.faults
        return [] if stopped else [("socket_network", crosses)]
    if code == "plugin_absent":  # up to NCCL 2.21 a name that failed may be followed by one that loads
        return [] if on_libfabric else [("plugin_not_found", crosses)]
    if code == "protocol_failed":  # where no provider was selected before, protocol SENDRECV says only this
        selected = process is not None and process.providers
        return [("plugin_init_failed" if selected else "no_eligible_provider", crosses)]
    if code == "peer_silent":
        return [("efa_peer_lost" if evidence.collectives else "efa_peer_unreachable", True)]
    return [(code, crosses or REASONS[code].weight == "error")]


def _fault(code: str, hits: list[_Hit], who: Membership) -> Finding:
    processes = [hit.process for hit in hits if hit.process is not None]
    line = min(hit.line for hit in hits)
    speakers = who.named(processes) if processes else "a line that names no rank"
    return Finding(f"{REASONS[code].means} ({speakers}: {_short(line)})", who.ranks_of(processes))


def _short(line: str) -> str:
    """The message of a line, without what stands before it."""
    for mark in ("NCCL WARN ", "NCCL INFO "):
        line = line.split(mark, 1)[-1]
    return line if len(line) <= 160 else line[:157] + "..."


def _lacking(evidence: Evidence, who: Membership) -> dict[str, Finding]:
    """What keeps the run from being proven, or what the verdict does not cover."""
    if not who.members:
        return {"no_nccl_lines": Finding(REASONS["no_nccl_lines"].means)}
    if who.single_node:
        return {"single_node": Finding(f"{REASONS['single_node'].means} ({who.named(who.members)})")}
    found: dict[str, Finding] = {}
    if who.one_rank_log:
        size = who.world_size or "an unknown number"
        found["one_rank_log"] = Finding(f"{REASONS['one_rank_log'].means} ({who.named(who.members)} of {size})")
    elif who.missing:
        found["ranks_missing"] = Finding(f"{REASONS['ranks_missing'].means}: {who.missing}", set(who.missing_ranks))
    lacks: dict[str, list[Process]] = {}
    for process in who.members:
        code = _lack(process)
        if code:
            lacks.setdefault(code, []).append(process)
    for process in _unconfirmed(who):
        if not any(process in known for known in lacks.values()):
            lacks.setdefault("truncated", []).append(process)
    for code, processes in lacks.items():
        found[code] = Finding(f"{REASONS[code].means} ({who.named(processes)})", who.ranks_of(processes))
    if not lacks and not any(_NET in process.transports() for process in who.members):
        found["nothing_crossed"] = Finding(REASONS["nothing_crossed"].means)
    if evidence.repeated and any(REASONS[code].weight == "unproven" for code in found):
        found["lines_hidden"] = Finding(REASONS["lines_hidden"].means)
    return found


def _lack(process: Process) -> str | None:
    """What a rank's own lines lack, as a code; None for one that proves its wire or needs none."""
    channels = process.transports()
    ranks = process.own_ranks()
    if not channels or (len(ranks) > 1 and not ranks <= {channel.own for channel in process.channels}):
        started = any(phase == "START" for _, _, phase in process.comms.values())
        chosen = process.providers or process.networks
        return "truncated" if started or not chosen else "intent_only"
    if not process.providers & EFA_PROVIDERS:
        return "provider_unknown"
    if _NET not in channels and LIBFABRIC not in process.networks:
        return "truncated"
    return None


def _unconfirmed(who: Membership) -> Iterable[Process]:
    """Ranks that must have channels to another node, as others say, and show none."""
    if not who.one_rank_log:
        crossing = {process.host for process in who.members if _NET in process.transports()}
        for process in who.members:
            if len(who.hosts) > 1 and crossing and process.host not in crossing:
                yield process
    if who.numbering_is_global:
        between = [channel for process in who.members for channel in process.channels if channel.between_nodes]
        named, showing = {channel.peer for channel in between}, {channel.own for channel in between}
        for process in who.members:
            if process.own_ranks() & (named - showing):
                yield process
