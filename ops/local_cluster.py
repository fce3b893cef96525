"""A Ray cluster of several nodes on this machine, each one `ray start --block` with an address of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ops import processes
from ops.errors import CommandError, NothingToDoError
from ops.slot import Slot
from ops.submitted_job import TOKEN_VARIABLE

# Of the person's shell: what would steer this cluster without being part of the job.
_NOT_INHERITED = ("RAY_", "NCCL_", "FI_", "GLOO_", "PYTHONPATH", "MASTER_", "WORLD_SIZE", "RANK", "LOCAL_RANK")
_OBJECT_STORE_BYTES = 150_000_000
_LONGEST_TEMP = 40  # Ray puts sockets 66 characters below; the kernel allows 107


@dataclass(frozen=True)
class Node:
    """One node: flags of `ray start` (without dashes), and the environment its pod would set.

    `address` in place of one from the cluster's slot; `inside` is a command that runs another one in the node's
    own network, such as `nsenter --target 4711 --net`. After SIGTERM a node drains for `drain_seconds`.
    """

    name: str
    flags: Mapping[str, str]
    environment: Mapping[str, str]
    address: str | None = None
    inside: tuple[str, ...] = ()
    drain_seconds: int = 0


@dataclass
class LocalCluster:
    """A running cluster. Made by `local_cluster`, which also ends it.

    `token` opens its ports where its nodes' environment sets RAY_AUTH_MODE to token: other users of this machine
    reach them too.
    """

    slot: Slot
    folder: Path
    marker: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    nodes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _addresses: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of the head's control store: the RAY_ADDRESS of its drivers."""
        return f"{self._addresses[0]}:{self.slot.gcs_port}"

    @property
    def dashboard(self) -> str:
        """URL of the dashboard and job API; on the loopback interface only."""
        return f"http://127.0.0.1:{self.slot.dashboard_port}"

    def start(self, head: Node, workers: list[Node]) -> None:
        """Start all nodes at once; returns before they are up."""
        self.add(head, *workers)

    def add(self, *nodes: Node) -> None:
        """Start further nodes; the first of all is the head."""
        python, first = self._python(), len(self._addresses)
        self._addresses += [node.address or self.slot.address(n) for n, node in enumerate(nodes, first)]
        for number, node in enumerate(nodes, first):
            is_head = number == 0
            own = _head_flags(self.slot) if is_head else {"address": self.address}
            own |= {"node-ip-address": self._addresses[number], "temp-dir": str(self._temp(number))}
            flags = [f"--{key}={value}" for key, value in {**node.flags, **_PORTS, **own}.items()]
            command = [*node.inside, str(python), "-m", "ray.scripts.scripts", "start", "--block",
                       "--disable-usage-stats"]
            command += ["--head"] if is_head else []
            self.nodes[node.name] = processes.start(command + flags, self._environment(node, number, python),
                                                    self.log(node.name))

    def wait_until_ready(self, seconds: float, waiting: Callable[[], None]) -> None:
        """Return when every node is alive in the head's eyes; `waiting` is called between looks.

        Raises:
            CommandError: if a node dies, or they are not all there after `seconds`.
        """
        deadline = time.monotonic() + seconds
        while (alive := self._alive()) < len(self.nodes):
            self.check()
            if time.monotonic() > deadline:
                raise CommandError(f"the local Ray cluster has {alive} of {len(self.nodes)} nodes after "
                                   f"{seconds:.0f} s\n{self._log_tails()}")
            waiting()
            time.sleep(0.2)

    def check(self) -> None:
        """Raise CommandError if a node's process has ended."""
        for name, process in self.nodes.items():
            if (code := process.poll()) is not None:
                raise CommandError(f"the local Ray node {name} ended with code {code}\n{_tail(self.log(name))}")

    def stop(self) -> None:
        """End every process of the cluster and remove its folder."""
        left = processes.kill_all({process.pid for process in self.nodes.values()}, self.marker)
        for process in self.nodes.values():
            process.poll()  # reap, so that no zombie stays
        shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            raise CommandError(f"processes {sorted(left)} of the local Ray cluster did not end; end them by hand")

    def log(self, name: str) -> Path:
        """What a node's `ray start` printed."""
        return self.folder / f"{name}.log"

    def _temp(self, number: int) -> Path:
        return self.folder / str(number)

    def _python(self) -> Path:
        """This Python, by a path without spaces: Ray starts its workers through an unquoted shell command."""
        if importlib.util.find_spec("ray") is None:
            raise CommandError("ray is missing in this Python environment; run make setup")
        executable = Path(sys.executable)
        if " " not in f"{executable}{sys.prefix}":
            return executable
        if not (link := self.folder / "python").is_symlink():
            link.symlink_to(sys.prefix)
        return link / executable.relative_to(sys.prefix)

    def _environment(self, node: Node, number: int, python: Path) -> dict[str, str]:
        """The person's environment, then the pod's, then what KubeRay would set for its own cluster."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        (temp := self.folder / f"tmp{number}").mkdir()
        # The nodes' traffic must not go to a proxy that the shell names.
        local = ",".join(["127.0.0.1", "localhost", *self._addresses])
        no_proxy = ",".join(filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), local]))
        return inherited | dict(node.environment) | {
            processes.MARKER: self.marker,
            TOKEN_VARIABLE: self.token,
            "RAY_ADDRESS": self.address,  # else two clusters on one host find each other
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(node.drain_seconds),
            "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)]),
            "TMPDIR": str(temp),
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }

    def _alive(self) -> int:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        opener.addheaders = [("Authorization", f"Bearer {self.token}")]
        try:
            with opener.open(f"{self.dashboard}/nodes?view=summary", timeout=2) as answer:
                summary = json.load(answer)["data"]["summary"]
        except (OSError, ValueError, KeyError, TypeError):
            return 0  # the dashboard is not up yet
        return sum(node.get("raylet", {}).get("state") == "ALIVE" for node in summary)

    def _log_tails(self) -> str:
        return "\n".join(f"{name}: {_tail(self.log(name))}" for name in self.nodes)


@contextmanager
def local_cluster(slot: Slot) -> Iterator[LocalCluster]:
    """A cluster without nodes yet; when the block ends, for whatever reason, so do all its processes."""
    if sys.platform != "linux":  # elsewhere only 127.0.0.1 of the loopback network answers
        raise NothingToDoError(f"a local Ray cluster needs Linux, this is {sys.platform}; use a Linux machine, "
                               "a container or WSL")
    base = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="eagleray-", dir=base if len(base) <= _LONGEST_TEMP else "/tmp"))
    cluster = LocalCluster(slot, folder, uuid.uuid4().hex)
    guard = processes.start_guard(cluster.marker, folder)
    try:
        yield cluster
    finally:
        try:
            cluster.stop()
        finally:
            guard.kill()
            guard.wait()


# 0: any free port, so that clusters do not meet on Ray's defaults.
_PORTS = {"min-worker-port": "0", "max-worker-port": "0", "dashboard-agent-listen-port": "0",
          "object-store-memory": str(_OBJECT_STORE_BYTES)}


def _head_flags(slot: Slot) -> dict[str, str]:
    return {"port": str(slot.gcs_port), "dashboard-port": str(slot.dashboard_port), "include-dashboard": "true",
            "ray-client-server-port": str(slot.client_port)}


def _tail(path: Path, lines: int = 15) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
