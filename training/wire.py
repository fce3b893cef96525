"""Over which wire a job's bytes go: proven before the model loads, looked at again when it has trained.

Each rank reads its own NCCL log, the verdict is on all of them together (training/transport.py), and what was
found lies in transport.json at once, also for a run that is refused.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training import counters, fabric, fabric_pairs
from training.config import TrainJob
from training.errors import AgreedError
from training.side_channel import AttemptError, SideChannel, arrive
from training.storage import RunFolder
from training.transport import Evidence, Reason, Verdict, read_logs, verdict
from training.wire_words import lines_for_people

FILE = "transport.json"

_GLOO = Reason("gloo_backend", "backend gloo moves bytes over TCP sockets; EFA is only reached through NCCL",
               "none needed on CPUs; on GPUs the backend is nccl")
_ONE_NODE = Reason("single_node", "all ranks are on one node: nothing crossed the network",
                   "run on two or more nodes to prove a wire")
_RULE = "!" * 78


@dataclass(frozen=True)
class Here:
    """This rank's device, and NCCL_DEBUG_FILE as it is set."""

    device: torch.device
    nccl_debug_file: str | None


class Wire:
    """The proof of one start of a job. Make it, and call its methods, on all ranks.

    Args:
        job: the job as in train.json.
        folder: of the run.
        channel: between all ranks.
        here: this rank's place.
    """

    def __init__(self, job: TrainJob, folder: RunFolder, channel: SideChannel, here: Here) -> None:
        self._job, self._folder, self._channel, self._here = job, folder, channel, here
        self._node = channel.nodes[dist.get_rank()]
        self._began = time.time() - 1  # clocks of file systems are coarse
        self._collectives = False
        self.has_seen_training = False
        """Whether `after_first_step` has been called."""
        self._counted: counters.Reading | None = None
        self._told: dict[str, Any] = {}
        self._warned: str | None = None
        self._earlier: list[dict[str, Any]] = []
        if dist.get_rank() == 0:
            before = folder.read_json(FILE)
            self._earlier = [] if before is None else [*before["earlier"], _in_short(before)]

    def prove(self) -> None:
        """Connect the ranks, check sums and bandwidth, and tell which wire they use.

        Raises:
            AgreedError: if they cannot talk, the sums are wrong, or the job may not train at this speed or over
                this wire; with numbers and the mend.
            MissingRanksError: if ranks do not come.
        """
        limits = self._job.training.fabric
        failure: str | None = None
        checked: fabric.Fabric | None = None
        arrive("the check of the network", limits.timeout_seconds)
        try:
            checked = self._check(limits.seconds, limits.timeout_seconds)
        except AttemptError as error:
            failure = str(error)
        found = self._judge()
        self._note(found, "the check before the model loads", fabric=None,
                   counters={"status": "unavailable", "reason": "the training did not come to its end"})
        failure = _because(failure, found) or self._refused_wire(found)
        slow = None if checked is None else self._compare(checked, found)
        failure = "; besides, ".join(filter(None, (failure, slow)))
        self._write()
        if failure:
            raise AgreedError(failure)
        if dist.get_rank() == 0:
            print("\n".join(lines_for_people(self._told)), flush=True)

    def _check(self, seconds: float, limit: float) -> fabric.Fabric | None:
        device = self._here.device
        self._channel.attempt("the first all-reduce", limit, device, lambda: fabric.connect(device))
        self._collectives = True
        if not seconds or dist.get_world_size() == 1:
            return None
        return fabric.measure(device, self._channel, seconds, limit)

    def start_counting(self) -> None:
        """Training starts: note what the EFA devices counted so far."""
        self._counted = counters.read() if self._first_of_node() else None

    def after_first_step(self) -> None:
        """Look again: training makes communicators of its own.

        Raises:
            AgreedError: if the job may not train over the wire that they use.
        """
        self.has_seen_training = True
        found = self._judge()
        self._note(found, "the first step")
        self._write()
        failure = self._refused_wire(found)
        if failure:
            raise AgreedError(f"after the first step: {failure}")

    def after_last_step(self) -> None:
        """The last look, and what the devices counted. The model is kept; what speaks against it is marked."""
        if not self.has_seen_training:
            return  # a finished run, started again
        mine = None
        if self._counted is not None:
            mine = {"node": self._node, **counters.moved(self._counted, counters.read())}
        nodes = [record for record in self._channel.gather(mine) if record is not None]
        found, still = self._judge(), counters.still(nodes)
        if found.verdict == "efa" and still:
            found = replace(found, verdict="unproven", reasons=[*found.reasons, _counters_still(still)])
        self._note(found, "the last step", counters=counters.merge(nodes))
        self._write()

    @property
    def carries_efa(self) -> bool | None:
        """Whether the last look proved EFA; None before the first, and on one node, where nothing crosses."""
        if self._job.placement.nodes == 1 or not self._told:
            return None
        return self._told["verdict"] == "efa"

    def _first_of_node(self) -> bool:
        return dist.get_rank() % self._job.placement.workers_per_node == 0

    def _judge(self) -> Verdict:
        """The verdict on all ranks' logs as they are now."""
        if self._job.placement.backend == "gloo":
            one = self._job.placement.nodes == 1
            return Verdict("unproven" if one else "tcp", [_ONE_NODE if one else _GLOO], [], dist.get_world_size())
        mine = read_own_log(self._here.nccl_debug_file, dist.get_rank(), self._began)
        if self._collectives:
            mine.note_collective()
        everyone = [Evidence.from_dict(record) for record in self._channel.gather(mine.to_dict())]
        return verdict(Evidence().merge(everyone), dist.get_world_size())

    def _refused_wire(self, found: Verdict) -> str | None:
        if not self._job.requires_efa or found.verdict == "efa":
            return None
        setting = self._job.training.transport.require
        why = " (several nodes with EFA)" if setting == "auto" else ""
        return (f"training.transport.require {setting}{why} wants EFA, and the verdict on the wire is "
                f"{found.verdict}: {' | '.join(map(str, found.reasons[:3]))}. To train over any wire, set "
                "training.transport.require=any")

    def _warning(self, found: Verdict) -> str | None:
        """What a person must not miss: bytes between GPU nodes that EFA does not carry."""
        place, require = self._job.placement, self._job.training.transport.require
        if place.backend == "gloo" or place.nodes == 1 or found.verdict == "efa":
            return None
        return f"bytes between nodes: {found.verdict}, not EFA (training.transport.require is {require})"

    def _compare(self, checked: fabric.Fabric, found: Verdict) -> str | None:
        """Note what was measured; why the job is refused for it, with the pairs of ranks that are to blame."""
        place, limits = self._job.placement, self._job.training.fabric
        expected = fabric.reach(place, found.verdict, limits.floor_fraction)
        failure = fabric.wrong_text(checked.wrong) if checked.wrong else fabric.too_slow(checked, expected)
        self._told["fabric"] = {
            "convention": "bus bandwidth, bytes / seconds x 2(n-1)/n", "ranks": dist.get_world_size(),
            "sums": "wrong" if checked.wrong else "right",
            "measured": [asdict(item) for item in checked.measured],
            "expected": None if expected is None else asdict(expected),
            "failure": failure, "pairs": [],
        }
        if failure is None:
            return None
        try:
            pairs = fabric_pairs.probe(place, self._here.device, self._channel, limits.timeout_seconds)
            blame = fabric_pairs.slowest_text(pairs, self._channel.nodes)
        except AttemptError as error:
            pairs, blame = [], str(error)
        self._told["fabric"]["pairs"] = [asdict(pair) for pair in pairs]
        mend = "replace the node, or its GPU" if checked.wrong else \
            "mend that node or its place in the network, or lower training.fabric.floor_fraction (0: no floor)"
        return f"{failure}; {blame}; {mend}"

    def _note(self, found: Verdict, when: str, **more: Any) -> None:
        self._told |= {
            "require": self._job.training.transport.require, "required": "efa" if self._job.requires_efa else "any",
            "allowed": self._refused_wire(found) is None, "warning": self._warning(found), **found.to_json(),
            "judged_after": when, **more,
        }
        known = {record["rank"]: record for record in self._told["ranks"]}
        self._told["ranks"] = [{"rank": rank, "node": node, **known.get(rank, {})}
                               for rank, node in enumerate(self._channel.nodes)]

    def _write(self) -> None:
        """Let rank 0 write what is known, and print a warning that is new."""
        if dist.get_rank() != 0:
            return
        self._folder.write_json(FILE, {**self._told, "earlier": self._earlier})
        warning = self._told["warning"]
        if warning and warning != self._warned:
            lines = [warning.upper(), *(f"{r['code']}: {r['detail']}; {r['mend']}" for r in self._told["reasons"])]
            print("\n".join([_RULE, *(f"!! {line}" for line in lines), _RULE]), flush=True)
        self._warned = warning


def read_own_log(debug_file: str | None, rank: int, since: float) -> Evidence:
    """What NCCL wrote in this process; nothing where it wrote none, which is then no proof.

    Args:
        debug_file: NCCL_DEBUG_FILE, with %h and %p as NCCL knows them (docs: NCCL_DEBUG_FILE).
        since: seconds since the epoch; a file that was not written later is another process's.
    """
    path = own_log(debug_file)
    try:
        if path is None or path.stat().st_mtime < since:
            return Evidence()
        return read_logs([path], rank=rank)
    except OSError:
        return Evidence()


def own_log(debug_file: str | None) -> Path | None:
    """The file that NCCL writes in this process: /tmp/nccl.%h.%p.log → /tmp/nccl.node-a.4711.log."""
    if not debug_file:
        return None
    names = {"%h": socket.gethostname().split(".")[0], "%p": str(os.getpid()), "%%": "%"}
    path, rest = "", debug_file
    while rest:
        taken = rest[:2] if rest[:2] in names else rest[:1]
        path, rest = path + names.get(taken, taken), rest[len(taken):]
    return Path(path)


def _because(failure: str | None, found: Verdict) -> str | None:
    """A failure with what the logs say about it."""
    if failure is None or not found.reasons:
        return failure
    return f"{failure}; the wire: {found.verdict}: {' | '.join(map(str, found.reasons[:3]))}"


def _counters_still(nodes: list[str]) -> Reason:
    return Reason("counters_still", f"the EFA devices of {', '.join(nodes[:4])} counted no byte while it trained",
                  "look whether the pod sees the devices that NCCL uses (ls /sys/class/infiniband)")


def _in_short(told: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an earlier start of the same run."""
    return {"verdict": told["verdict"], "reasons": told["reasons"], "judged_after": told["judged_after"],
            "world_size": len(told["ranks"])}
