"""Two networks on one Linux machine with two links between them, a fast and a slow one, of the kernel's own kind.

    this command, the Ray head, node 1          node 2
      fast 10.77.1.1, 10.77.1.10  ───────────── 10.77.1.2 fast
      slow 10.77.2.1              ──── tbf ──── 10.77.2.2 slow

Nothing outside of the two networks is touched, and they are gone with the processes in them. Works as root, and
without it where users may make namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FAST, SLOW = "fast", "slow"
SLOW_MBIT = 100
HEAD, NODES = "10.77.1.10", ("10.77.1.1", "10.77.1.2")
_INSIDE = "EAGLERAY_OWN_NETWORK"
_TOOLS = ("unshare", "nsenter", "ip", "tc")
_SECONDS = 10


@dataclass(frozen=True)
class TwoLinks:
    """The two networks. `inside` is what runs a command in each node's."""

    inside: tuple[tuple[str, ...], tuple[str, ...]]

    def slow_bytes(self) -> int:
        """Bytes that node 1 has sent and received over the slow link; the kernel's own count."""
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == SLOW:
                fields = counters.split()
                return int(fields[0]) + int(fields[8])
        return 0


def enter_own_network() -> str | None:
    """Start this command again in a network of its own; does not return where that works.

    Returns:
        None if this is the command that was started again, else why it cannot be.
    """
    if os.environ.get(_INSIDE):
        return None
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if sys.platform != "linux" or lacking:
        return f"this machine lacks {', '.join(lacking) or 'Linux'}"
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    tried = subprocess.run([*own, "ip", "link", "set", "lo", "up"], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"this machine does not let us make a network of our own ({tried.stderr.strip()})"
    sys.stdout.flush()
    os.execvpe(own[0], [*own, sys.executable, *sys.orig_argv[1:]], {**os.environ, _INSIDE: "1"})


@contextmanager
def two_links() -> Iterator[TwoLinks]:
    """Make the second network and both links; call only where `enter_own_network` returned None.

    Raises:
        OSError: with the reason, if this kernel cannot.
    """
    _run("ip", "link", "set", "lo", "up")
    # Lives until its standard input ends, that is until we do, however we do.
    other = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                             start_new_session=True)
    try:
        _wait_for_its_network(other.pid)
        there = ("nsenter", "--target", str(other.pid), "--net")
        _run(*there, "ip", "link", "set", "lo", "up")
        for network, link in enumerate((FAST, SLOW), start=1):
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", link, "netns", str(other.pid))
            for end, inside in enumerate(((), there), start=1):
                _run(*inside, "ip", "address", "add", f"10.77.{network}.{end}/24", "dev", link)
                _run(*inside, "ip", "link", "set", link, "up")
        _run("ip", "address", "add", f"{HEAD}/24", "dev", FAST)
        for inside in ((), there):
            _run(*inside, "tc", "qdisc", "add", "dev", SLOW, "root", "tbf", "rate", f"{SLOW_MBIT}mbit",
                 "burst", "128kb", "latency", "400ms")
        yield TwoLinks(((), there))
    finally:
        other.kill()
        other.wait()


def _wait_for_its_network(pid: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if time.monotonic() > deadline:
            raise OSError("a second network was not made")
        time.sleep(0.02)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
