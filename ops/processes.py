"""Processes that end when we do: start them, find all they started, end them for certain. Linux only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MARKER = "EAGLERAY_REHEARSAL"
"""Environment variable that every process of a local cluster inherits; its value names the cluster."""


def start(command: Sequence[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own: a Ctrl-C at the terminal reaches us, not it."""
    with log.open("ab") as out:
        return subprocess.Popen(command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out,
                                stderr=subprocess.STDOUT, start_new_session=True)


def start_guard(marker: str, folder: Path) -> subprocess.Popen[bytes]:
    """A process that ends all that carry the marker, and removes the folder, when this process is gone.

    It waits for the end of its standard input, which the kernel closes however we die (kill -9 too).
    """
    return subprocess.Popen([sys.executable, __file__, marker, str(folder)], stdin=subprocess.PIPE,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def kill_all(sessions: set[int], marker: str, seconds: float = 15) -> set[int]:
    """SIGKILL every process of these sessions and every one that carries the marker, with its session.

    Ray starts a job's driver in a session of its own, so sessions alone miss it; Ray's workers overwrite
    their environment when they set their title, so the marker alone misses them.

    Returns:
        The processes that are still there after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while found := find(sessions, marker):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return found
        time.sleep(0.05)
    return set()


def find(sessions: set[int], marker: str) -> set[int]:
    """Process ids of these sessions and of the sessions of all that carry the marker; zombies are not counted."""
    table = {pid: facts for pid in _pids() if (facts := _facts(pid))}
    sessions = sessions | {table[pid][1] for pid in marked(marker) if pid in table}
    return {pid for pid, (state, session) in table.items() if session in sessions and state not in "ZX"}


def marked(marker: str) -> set[int]:
    """Process ids of those alone that carry the marker: where they share a session with others."""
    wanted = f"{MARKER}={marker}".encode()
    return {pid for pid in _pids() if wanted in _environment(pid)}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _facts(pid: int) -> tuple[str, int] | None:
    """State and session id."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name in brackets may hold spaces
    return fields[0], int(fields[3])


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _guard(marker: str, folder: str) -> None:
    sys.stdin.buffer.read()
    kill_all(set(), marker)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(*sys.argv[1:])
