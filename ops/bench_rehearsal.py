"""Runs of a comparison on this machine: gloo over a fast link in place of EFA, over a slow one in place of TCP."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops import run_storage
from ops.bench_job import EFA_AND_TCP, PlannedRun, Shape, Wire, Wires
from ops.interrupts import Interrupts
from ops.job_run import Follower, JobFailedError, connect, submit
from ops.local_cluster import LocalCluster, Node, local_cluster
from ops.rehearsal import CLUSTER_SECONDS, explained, laptop_places, laptop_training, write_text, write_volume
from ops.replacements import LaptopPlaces, for_laptop
from ops.screen import Screen
from ops.slot import own_slot
from ops.submitted_job import SubmittedJob, submitted_job
from ops.two_links import FAST, HEAD, NODES, SLOW, SLOW_MBIT, TwoLinks, two_links

_VERDICT = "tcp"
_SLOW_LINK_BYTES = 100_000  # more than a link's own chatter, less than one step's gradients


@dataclass
class RehearsalBackEnd:
    """A local Ray cluster that runs one job after the other. `others`: the app's objects besides the job's own."""

    cluster: LocalCluster
    links: TwoLinks | None
    others: Sequence[dict[str, Any]]
    shape: Shape
    screen: Screen
    signals: Interrupts
    problems: list[str] = field(default_factory=list)

    @property
    def interfaces(self) -> dict[str, str]:
        """The interface that gloo uses in place of each wire."""
        return {"efa": FAST, "tcp": SLOW} if self.links else {"efa": "lo", "tcp": "lo"}

    @property
    def wires(self) -> Wires:
        """The two wires under the names of what they are here. Gloo moves bytes over TCP, whatever the link."""
        efa, tcp = EFA_AND_TCP
        return (replace(efa, title=f"gloo over {self.interfaces['efa']}, for EFA", verdict=_VERDICT),
                replace(tcp, title=f"gloo over {self.interfaces['tcp']}, for TCP", verdict=_VERDICT))

    @property
    def storage(self) -> str:
        """Goes with the cluster: what matters is fetched from there."""
        return str(self.cluster.folder / "storage")

    def run(self, run: PlannedRun, objects: Sequence[dict[str, Any]], folder: Path) -> None:
        """Run to the end and leave summary.json, metrics.jsonl and job.log in `folder`.

        Raises:
            CommandError: if the run fails or is not done in time.
        """
        scratch = self.cluster.folder / run.label
        submitted = submitted_job([*self.others, *objects], folder)
        job = self._for_laptop(submitted, laptop_places(submitted, scratch, Path(self.storage)), run.wire)
        write_volume(job, scratch / "submitter")
        folder.mkdir(parents=True, exist_ok=True)
        before = self.links.slow_bytes() if self.links else 0
        results = Path(self.storage) / run.name
        self._follow(job, run, folder, results)
        run_storage.fetch(str(results), folder)
        if self.links:
            self._note(run, self.links.slow_bytes() - before)

    def _for_laptop(self, submitted: SubmittedJob, places: LaptopPlaces, wire: Wire) -> SubmittedJob:
        """The job as this machine can run it, over the link that stands for `wire`."""
        places = replace(places, text=f"{self.cluster.folder}/text/stdlib.txt",
                         tokenizer=f"{self.cluster.folder}/text/tokenizer")
        job = for_laptop(submitted, laptop_training(), places, self.shape.minutes * 60, self.shape.steps)
        variables = {**job.runtime_env["env_vars"], "GLOO_SOCKET_IFNAME": self.interfaces[wire.name]}
        return replace(job, runtime_env={**job.runtime_env, "env_vars": variables})

    def _follow(self, job: SubmittedJob, run: PlannedRun, folder: Path, results: Path) -> None:
        def check() -> None:
            self.signals.check()
            self.cluster.check()

        began = time.monotonic()
        client = connect(self.cluster.dashboard, self.cluster.token)
        follower = Follower(client, submit(client, job), results / "metrics.jsonl")
        try:
            with self.screen.training(self.shape.steps) as steps:
                for rows in follower.steps(job.deadline_seconds or 0, check):
                    for row in rows:
                        steps.show(row)
        except JobFailedError as failure:
            raise explained(failure, results, folder / "job.log") from None
        (folder / "job.log").write_text(follower.log())
        self.screen.line(f"{run.label}: done after {time.monotonic() - began:.0f} s")

    def _note(self, run: PlannedRun, slow_bytes: int) -> None:
        """The rehearsal's own proof of the wire: what the kernel counted on the slow link."""
        self.screen.line(f"{run.label}: {slow_bytes / 1e6:.1f} MB over the slow link")
        if (slow_bytes > _SLOW_LINK_BYTES) != (run.wire.name == "tcp"):
            self.problems.append(f"run {run.label} moved {slow_bytes} bytes over the slow link")


@contextmanager
def rehearsal_back_end(objects: Sequence[dict[str, Any]], job: SubmittedJob, shape: Shape, screen: Screen,
                       signals: Interrupts, no_links: str | None) -> Iterator[RehearsalBackEnd]:
    """A local Ray cluster, up until the block ends. `no_links`: why there cannot be two links, if so.

    Raises:
        CommandError: if the cluster does not come up.
    """
    with ExitStack() as stack:
        links = None
        if no_links is None:
            try:
                links = stack.enter_context(two_links())
            except OSError as error:
                no_links = str(error)
        screen.line(f"two links between the nodes, the slow one of {SLOW_MBIT} Mbit/s" if links else
                    f"both wires are the loopback interface, so the two should be alike: {no_links}")
        cluster = stack.enter_context(local_cluster(stack.enter_context(own_slot())))
        stack.callback(signals.clean_up_undisturbed)  # last in, first out: before the cluster is stopped
        _bring_up(cluster, job, shape, links, screen, signals)
        others = [o for o in objects if o.get("kind") != "RayJob"]
        yield RehearsalBackEnd(cluster, links, others, shape, screen, signals)


def _bring_up(cluster: LocalCluster, job: SubmittedJob, shape: Shape, links: TwoLinks | None, screen: Screen,
              signals: Interrupts) -> None:
    places = laptop_places(job, cluster.folder, cluster.folder / "storage")
    rehearsed = for_laptop(job, laptop_training(), places, shape.minutes * 60, shape.steps)
    count = rehearsed.workers.count
    with screen.phase("cluster", f"Ray cluster of a CPU-less head and {count} node{'s' * (count != 1)}"):
        head = Node("head", rehearsed.head.ray_start, rehearsed.head.environment, address=HEAD if links else None)
        cluster.start(head, [_worker(number, rehearsed, links) for number in range(count)])
        write_text(rehearsed, places)
        cluster.wait_until_ready(CLUSTER_SECONDS, signals.check)


def _worker(number: int, job: SubmittedJob, links: TwoLinks | None) -> Node:
    node = Node(f"worker-{number + 1}", job.workers.ray_start, job.workers.environment)
    return replace(node, address=NODES[number], inside=links.inside[number]) if links else node
