"""Addresses and ports of one rehearsal, which no other rehearsal on this machine has at the same time."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.errors import CommandError

# Ray hands out 10002-19999 to its own workers, Linux 32768 and up to outgoing connections: stay between.
_FIRST_PORT, _PORTS_EACH, _SLOTS = 20000, 40, 250


@dataclass(frozen=True)
class Slot:
    """Slot n owns the loopback addresses 127.0.n.* and 40 ports."""

    number: int

    def address(self, node: int) -> str:
        """Address of node `node`: 127.0.n.10 is the head. Ray keeps these, but would replace 127.0.0.1."""
        return f"127.0.{self.number}.{10 + node}"

    @property
    def gcs_port(self) -> int:
        """Port of the head's control store: what `ray start --address` names."""
        return self._port(0)

    @property
    def dashboard_port(self) -> int:
        """Port of the dashboard, which serves the job API."""
        return self._port(1)

    @property
    def client_port(self) -> int:
        """Port of the Ray client server; unused, but its default collides between clusters."""
        return self._port(2)

    def _port(self, offset: int) -> int:
        return _FIRST_PORT + self.number * _PORTS_EACH + offset

    def is_free(self) -> bool:
        """True if no process listens on the slot's ports, on any address."""
        return all(_can_bind(port) for port in (self.gcs_port, self.dashboard_port, self.client_port))


@contextmanager
def own_slot() -> Iterator[Slot]:
    """The first slot that nobody holds and whose ports are free; it is ours until the block ends.

    The kernel drops the lock when the process dies, however it dies.

    Raises:
        CommandError: if all slots are taken.
    """
    for number in range(1, _SLOTS):
        lock = _try_lock(Path(tempfile.gettempdir()) / f"eagleray-slot-{number}.lock")
        if lock is None:
            continue
        try:
            if Slot(number).is_free():
                yield Slot(number)
                return
        finally:
            os.close(lock)
    last = _FIRST_PORT + _SLOTS * _PORTS_EACH - 1
    raise CommandError(f"no free ports between {_FIRST_PORT} and {last} for a local Ray cluster; end some programs")


def _try_lock(path: Path) -> int | None:
    """A file descriptor that holds the lock, or None if another process (or user) has it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True
