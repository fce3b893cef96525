"""A rank that hangs stops all others in silence: after a while without progress each says where it is, and ends.

Each rank has a thread that knows the place and step at which its training is. When a place takes longer than its
limit, the thread writes the stacks of all threads of its process to its log and to the run's storage, reads what
the others wrote, names the late rank and ends the process; Ray starts the workers again from the last checkpoint.
The ranks talk through files of the run's folder: those work when collectives hang, and when the process that
serves torch's store is the one that is stopped. Nothing is written while training goes on.

    <run>/stacks/20261202T153000/rank-00001.txt    all threads of rank 1
    <run>/stacks/20261202T153000/rank-00001.json   its place, for the others
    <run>/stacks/20261202T153000/verdict.json      who is late
    <run>/hang.json                                the same, of the last start only
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from training.errors import first_line
from training.sections import HangConfig
from training.side_channel import SideChannel, ranks_text
from training.storage import RunFolder

FILE = "hang.json"
EXIT_CODE = 75
"""Of a process that ended itself here; EX_TEMPFAIL: trying again may help."""
_PLACES = ("start", "data", "step", "checkpoint")
_TORCH = str(Path(torch.__file__).parent)
_LOOKS = 20
"""How often, within the limit of a step, a rank looks at its clock."""


def longest_wait(limits: HangConfig) -> float:
    """Seconds after which a rank has ended itself, wherever it hangs."""
    return 60 * max(limits.step_minutes, limits.checkpoint_minutes, limits.start_minutes)


class Watchdog:
    """The watch over one rank; `with` ends it. It sleeps until `watch`.

    Args:
        limits: `training.hang`.
        end: ends the process; never returns.
    """

    def __init__(self, limits: HangConfig, end: Callable[[int], Any] = os._exit) -> None:
        steps = limits.step_minutes * 60
        self._limits = {"start": limits.start_minutes * 60, "data": steps, "step": steps,
                        "checkpoint": limits.checkpoint_minutes * 60}
        self._step_limit, self._end = steps, end
        self._patience = min(20.0, max(2.0, steps / 4))  # for the reports of the others
        self._at = ("start", 0, time.monotonic())
        self._first_step = 0
        self._ended = threading.Event()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    def watch(self, folder: RunFolder, channel: SideChannel) -> None:
        """Begin, at the place `start`. Call on all ranks, on the thread that trains."""
        began = channel.gather(datetime.now(UTC).strftime("%Y%m%dT%H%M%S"))[0]
        self._folder, self._stacks = folder, f"stacks/{began}"
        self._rank, self._world, self._nodes = dist.get_rank(), dist.get_world_size(), channel.nodes
        self._training = threading.get_ident()
        if self._rank == 0:
            folder.remove(FILE)
        self.at("start", 0)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def at(self, place: str, step: int) -> None:
        """The training of this rank is now at `place` of `step`."""
        assert place in _PLACES
        self._first_step = self._first_step or step
        self._at = (place, step, time.monotonic())

    def _watch(self) -> None:
        while not self._ended.wait(self._step_limit / _LOOKS):
            # Where not even this thread can run, because a library holds Python's lock, the C library writes the
            # stacks to the log by itself; each look puts that off.
            faulthandler.dump_traceback_later(self._step_limit, file=2)
            place, step, since = at = self._at
            waited = time.monotonic() - since
            limit = self._limits["start" if step == self._first_step else place]  # the first step compiles
            if waited > limit or (waited > self._step_limit / 2 and self._others_hang()):
                self._hangs(at)

    def _others_hang(self) -> bool:
        """Whether another rank has reported: this one has a longer limit where it is, or is the late one."""
        try:
            return any(name.endswith(".json") for name in self._folder.sizes(self._stacks))
        except OSError:
            return False

    def _hangs(self, at: tuple[str, int, float]) -> None:
        verdict = f"no progress, and {self._folder.uri} cannot be reached to ask the other ranks"
        try:
            self._report(at)
            reports = self._reports()
            if self._ended.is_set() or self._at != at:  # it went on after all
                self._folder.remove(f"{self._name()}.json")
                return
            verdict = judge(reports, self._world, self._nodes)
            found = {"reason": verdict, "time": time.time(), "reports": reports}
            if self._rank == min(report["rank"] for report in reports):
                self._folder.write_json(f"{self._stacks}/verdict.json", found)
                self._folder.write_json(FILE, found)
            else:
                self._wait_for(lambda: self._folder.read_json(f"{self._stacks}/verdict.json"))
        except OSError as error:
            print(f"{self._stacks} cannot be written: {first_line(error)}", file=sys.stderr, flush=True)
        print(f"rank {self._rank} ends itself: {verdict}", file=sys.stderr, flush=True)
        self._end(EXIT_CODE)

    def _report(self, at: tuple[str, int, float]) -> None:
        place, step, since = at
        with tempfile.TemporaryFile("w+") as stream:
            faulthandler.dump_traceback(file=stream, all_threads=True)
            stream.seek(0)
            stacks = stream.read()
        what = f"rank {self._rank} of {self._world} makes no progress: {place} of step {step}"
        print(f"{what}; the stacks of its threads:\n{stacks}", file=sys.stderr, flush=True)
        frame = traceback.extract_stack(sys._current_frames().get(self._training))[-1]
        self._folder.write_text(f"{self._name()}.txt", f"{what}\n{stacks}")
        self._folder.write_json(f"{self._name()}.json", {
            "rank": self._rank, "place": place, "step": step, "seconds": round(time.monotonic() - since, 1),
            "where": f"{frame.name} ({Path(frame.filename).name}:{frame.lineno})",
            "waits": frame.filename.startswith(_TORCH),
        })

    def _name(self) -> str:
        return f"{self._stacks}/rank-{self._rank:05d}"

    def _reports(self) -> list[dict[str, Any]]:
        """What the ranks have written, once all have or no more comes."""
        def written() -> list[dict[str, Any]]:
            names = [f"{self._stacks}/rank-{rank:05d}.json" for rank in range(self._world)]
            return [report for name in names if (report := self._folder.read_json(name))]

        self._wait_for(lambda: len(written()) == self._world)
        return written()

    def _wait_for(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + self._patience
        while not there() and time.monotonic() < deadline:
            time.sleep(self._patience / 20)


def judge(reports: Sequence[dict[str, Any]], world: int, nodes: Sequence[str]) -> str:
    """Who is late, in one line.

    A rank that wrote nothing is: its process is stopped, or its node is gone. Else those that are behind the
    others; where all are at the same place, those that do something of their own while the others wait in torch.

    Args:
        reports: of at least one rank, as in `stacks/…/rank-*.json`.
        world: ranks in all.
        nodes: of each rank.
    """
    by_rank = {report["rank"]: report for report in reports}
    furthest = max(reports, key=_progress)
    there = f"the others wait in {_words(furthest)}"
    if silent := [rank for rank in range(world) if rank not in by_rank]:
        return f"{_named(silent, nodes)} gave no sign (stopped, or the node is gone); {there}"
    behind = [r for r in reports if _progress(r) < _progress(furthest)]
    late = behind or [r for r in reports if not r["waits"]]
    if not late or len(late) == world:
        return f"no rank is late: all {world} hang in {_words(furthest)}; their stacks lie under stacks/"
    first = min(late, key=_progress)
    hang = "hangs" if len(late) == 1 else "hang"
    return f"{_named([r['rank'] for r in late], nodes)} {hang} in {_words(first)} at {first['where']}; {there}"


def _progress(report: dict[str, Any]) -> tuple[int, int]:
    return report["step"], _PLACES.index(report["place"])


def _words(report: dict[str, Any]) -> str:
    """`the data of step 7`, `step 7`, `the start`."""
    return {"start": "the start", "step": f"step {report['step']}"}.get(
        report["place"], f"the {report['place']} of step {report['step']}")


def _named(ranks: Sequence[int], nodes: Sequence[str]) -> str:
    """`rank 1 (node 10.0.0.7)`."""
    places = sorted({nodes[rank] for rank in ranks})
    listed = ", ".join(places[:4]) + (f" and {len(places) - 4} more" if len(places) > 4 else "")
    return f"{ranks_text(ranks)} (node{'s' * (len(places) != 1)} {listed})"


def reason(folder: RunFolder) -> str | None:
    """Why the last start ended, if it ended itself here and that can be read."""
    try:
        found = folder.read_json(FILE)
    except OSError:
        return None
    return found["reason"] if found else None


def hangs(folder: RunFolder) -> list[str]:
    """The reasons of all hangs of a run, oldest first."""
    found = [folder.read_json(f"stacks/{name}/verdict.json") for name in folder.folders("stacks")]
    return [verdict["reason"] for verdict in found if verdict]
