"""One run folder, one run: the driver's lease on the folder, lease.json.

The holder counts `beat` up several times in `seconds`. A lease is free when its file is gone (the run ended), when
its holder was a process of this very machine that is no more, or when `beat` stood still for `seconds`: so a run
whose head died is found free by its rerun without anybody's help, and the clocks of two machines are not compared.

S3 through pyarrow has no atomic "create only if absent". So a taker writes its own id, waits a moment and reads
back: of two who write at the same time, the one that wrote last has the lease. The window: a write that takes
longer than that moment (SETTLE_SECONDS) to arrive. Then two hold it, for a quarter of `seconds` at most: a holder
that finds another id in the file at its next beat ends its run.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from training.errors import JobError, first_line
from training.storage import RunFolder

FILE = "lease.json"
SECONDS = 60.0
SETTLE_SECONDS = 2.0
_SETTLE_SECONDS_LOCAL = 0.2
_BEATS = 4
_LONG_DEAD = 20
"""Leases of this many times `seconds` ago are not watched first: no two clocks differ as much."""


class HeldError(JobError):
    """Another run holds the folder."""


class Lease:
    """A lease that is held and kept alive by a thread. Made by `Lease.take`; `with` releases it.

    Args:
        folder: of the run.
        record: the contents of lease.json; `id` is ours alone.
        seconds: without a beat until others may take it.
        lost: called with the reason, on the thread, when another run has taken the folder.
    """

    def __init__(self, folder: RunFolder, record: dict[str, Any], seconds: float,
                 lost: Callable[[str], None]) -> None:
        self._folder, self._record, self._seconds, self._lost = folder, record, seconds, lost
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, folder: RunFolder, holder: str, *, lost: Callable[[str], None], wait_seconds: float = 0,
             seconds: float = SECONDS, say: Callable[[str], None] = print) -> Lease:
        """The lease on `folder`.

        A holder that lives is waited for `wait_seconds`; one that may be dead is watched for `seconds`.

        Args:
            holder: name of this run, for the people of another.
            say: gets one line when there is something to wait for.

        Raises:
            HeldError: if another run holds it; says who, since when, and how to take over.
            JobError: if the storage cannot be read or written.
        """
        record = _record(holder)
        began, seen, still_since, alive = time.monotonic(), None, time.monotonic(), False
        try:
            while True:
                found = _read(folder)
                if found is None or _is_over(found, seconds) or time.monotonic() - still_since > seconds:
                    if _claim(folder, record):
                        return cls(folder, record, seconds, lost)
                elif seen is None:
                    alive = found.get("machine") == _machine()  # its process is there, else it would be over
                    say(f"{_words(found, folder)}; waiting until it ends, or is seen to be dead ({seconds:g} s)")
                elif found != seen:
                    alive, still_since = True, time.monotonic()
                seen = found
                if seen and alive and time.monotonic() - began >= wait_seconds:
                    raise HeldError(f"{_words(seen, folder)}; stop that run first, or give this one another name. "
                                    f"To take over without reaching it, delete {folder.uri}/{FILE}: that ends it")
                time.sleep(min(1.0, seconds / _BEATS / 4))
        except OSError as error:
            raise JobError(f"placement.storage: {folder.uri} cannot be read and written: "
                           f"{first_line(error)}") from error

    def release(self) -> None:
        """Let the next run take the folder at once."""
        self._ended.set()
        self._thread.join()
        try:
            if (_read(self._folder) or {}).get("id") == self._record["id"]:
                self._folder.remove(FILE)
        except OSError as error:
            print(f"{self._folder.uri}/{FILE} cannot be removed ({first_line(error)}); the next run waits for it "
                  f"{self._seconds:g} s", flush=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep(self) -> None:
        """A beat several times in `seconds`, until released. Storage that fails for a while is asked again."""
        while not self._ended.wait(self._seconds / _BEATS):
            try:
                found = _read(self._folder)
                if found is None or found.get("id") != self._record["id"]:
                    by = f"was taken over by {found.get('holder')}" if found else "is gone"
                    self._lost(f"{self._folder.uri}/{FILE} {by}, so this run ends; another may take its place")
                    return
                self._record = {**self._record, "beat": self._record["beat"] + 1, "renewed": time.time()}
                self._folder.write_json(FILE, self._record)
            except OSError as error:
                print(f"{self._folder.uri}/{FILE} cannot be renewed ({first_line(error)}); trying again",
                      flush=True)


def _record(holder: str) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {"id": uuid.uuid4().hex, "holder": holder, "machine": _machine(), "pid": os.getpid(),
            "started": _started(os.getpid()), "since": now.isoformat(timespec="seconds"),
            "renewed": now.timestamp(), "beat": 0}


def _claim(folder: RunFolder, record: dict[str, Any]) -> bool:
    """Whether the folder is ours after a moment in which others may have written too."""
    folder.write_json(FILE, record)
    time.sleep(_SETTLE_SECONDS_LOCAL if folder.is_local else SETTLE_SECONDS)
    return (_read(folder) or {}).get("id") == record["id"]


def _read(folder: RunFolder) -> dict[str, Any] | None:
    """The lease in storage; one that is no JSON is somebody's, whose beat stands still."""
    try:
        found = folder.read_json(FILE)
    except json.JSONDecodeError:
        found = {}
    return found if found is None or isinstance(found, dict) else {}


def _is_over(found: dict[str, Any], seconds: float) -> bool:
    """Whether the holder is dead for certain: its process was here and is no more, or it is long silent."""
    if found.get("machine") == _machine() and found.get("started") != _started(found.get("pid", 0)):
        return True
    return time.time() - found.get("renewed", time.time()) > _LONG_DEAD * seconds


def _words(found: dict[str, Any], folder: RunFolder) -> str:
    machine = found.get("machine") or ["an unknown machine"]
    return (f"{folder.uri} is held by {found.get('holder', 'an unknown run')} (process {found.get('pid', '?')} on "
            f"{machine[0]}, since {found.get('since', '?')})")


def _machine() -> list[str]:
    """Host name, and what changes with each boot: process ids mean something only on the same of both."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = uuid.uuid4().hex  # no machine is taken for this one
    return [socket.gethostname(), boot]


def _started(pid: int) -> int | None:
    """Ticks after boot at which a process of this machine began (proc(5), field 22); None if there is none."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None
