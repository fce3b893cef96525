"""Runs of a comparison on the Kubernetes cluster that KUBECONFIG names, as RayJobs beside the deployed one."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops import run_storage
from ops.bench_job import BENCH_LABEL, EFA_AND_TCP, PlannedRun, Shape, Wires
from ops.deployed_run import ENDED, is_over, standing_cluster
from ops.errors import CommandError, NothingToDoError
from ops.interrupts import Interrupts
from ops.kube import KubeError, Namespace, UnreachableError
from ops.screen import Screen, short
from ops.submitted_job import SubmittedJob

_EVERY_SECONDS = 5.0
_SILENCE_SECONDS = 300  # without an answer of the API server
_IGNORED_SECONDS = 120  # without a status: the operator looks at a new RayJob within seconds
_GRACE_SECONDS = 300  # after the job's own deadline, which the operator enforces
_GONE_SECONDS = 90  # for a finalizer
_LOG_LINES = 20


@dataclass
class ClusterBackEnd:
    """Runs RayJobs one at a time. `storage` is where they leave their results."""

    namespace: Namespace
    storage: str
    shape: Shape
    screen: Screen
    signals: Interrupts
    wires: Wires = EFA_AND_TCP
    problems: list[str] = field(default_factory=list)
    """None here: a run's own transport verdict says it all."""

    def run(self, run: PlannedRun, objects: Sequence[dict[str, Any]], folder: Path) -> None:
        """Run to the end and leave summary.json, metrics.jsonl and job.log in `folder`.

        A RayJob of that name that is there (this command was killed) is followed, not made again. Whatever
        happens, the RayJob and its ConfigMaps are deleted.

        Raises:
            CommandError: if the run fails, is not done in time, or cannot be deleted.
        """
        *config_maps, ray_job = objects
        failure = None
        try:
            self._start(run, objects)
            self._wait(run, ray_job["spec"].get("preRunningDeadlineSeconds", 0))
            run_storage.fetch(f"{self.storage}/{run.name}", folder)
        except CommandError as error:
            failure = error
            raise
        finally:
            self.signals.clean_up_undisturbed()
            self._clean_up(run, [one["metadata"]["name"] for one in config_maps], folder, failure)
        self._forget(run)

    def _start(self, run: PlannedRun, objects: Sequence[dict[str, Any]]) -> None:
        there = self.namespace.get("RayJob", run.name)
        if there and "deletionTimestamp" in there["metadata"]:
            self._wait_until_gone(run.name)
            there = None
        if there:
            self.screen.line(f"{run.label}: RayJob {run.name} is there already; following it")
            return
        run_storage.remove(f"{self.storage}/{run.name}")  # what an interrupted attempt left
        for manifest in objects:
            self.namespace.create(manifest)
        self.screen.line(f"{run.label}: RayJob {run.name} created")

    def _wait(self, run: PlannedRun, start_seconds: int) -> None:
        began = answered = time.monotonic()
        deadline = began + start_seconds + self.shape.minutes * 60 + _GRACE_SECONDS
        shown = None
        with self.screen.console.status(f"{run.label} …") as spinner:
            while True:
                self.signals.check()
                now = time.monotonic()
                try:
                    status, answered = self._status(run), now
                    shown = self._show(run, status, shown, now - began)
                    spinner.update(f"{run.label}  {now - began:.0f} s  {self._last_line(run, status)}")
                    if self._ended_well(run, status):
                        return
                except UnreachableError:
                    if now - answered > _SILENCE_SECONDS:
                        raise
                    status = {"jobDeploymentStatus": "unknown"}
                if not status.get("jobDeploymentStatus") and now - began > _IGNORED_SECONDS:
                    raise CommandError(
                        f"KubeRay gives RayJob {run.name} no status; does its operator run, and watch namespace "
                        f"{self.namespace.name}? (kubectl get pods -A | grep kuberay)")
                if now > deadline:
                    raise CommandError(f"run {run.label} is not done after {now - began:.0f} s (--minutes)")
                time.sleep(_EVERY_SECONDS)

    def _status(self, run: PlannedRun) -> dict[str, Any]:
        found = self.namespace.get("RayJob", run.name)
        if found is None:
            raise CommandError(f"RayJob {run.name} has vanished; somebody else has deleted it")
        return found.get("status") or {}

    def _show(self, run: PlannedRun, status: dict[str, Any], shown: str | None, seconds: float) -> str:
        words = " ".join(str(status[key]) for key in ("jobDeploymentStatus", "jobStatus") if status.get(key))
        if words != shown and words:
            self.screen.line(f"{run.label}: {words} after {seconds:.0f} s")
        return words

    def _last_line(self, run: PlannedRun, status: dict[str, Any]) -> str:
        if status.get("jobDeploymentStatus") != "Running" or not self.screen.console.is_terminal:
            return ""
        try:
            return short(self.namespace.submitter_log(run.name, lines=1), 60)
        except KubeError:  # a nicety
            return ""

    def _ended_well(self, run: PlannedRun, status: dict[str, Any]) -> bool:
        """Raise CommandError for a run that ended otherwise."""
        if status.get("jobDeploymentStatus") not in ENDED:
            return False
        if status.get("jobStatus") == "SUCCEEDED":
            return True
        why = ": ".join(str(status[key]) for key in ("reason", "message") if status.get(key))
        log = self.namespace.submitter_log(run.name, _LOG_LINES).rstrip()
        tail = "".join(f"\n  | {line}" for line in log.splitlines())
        raise CommandError(f"run {run.label} (RayJob {run.name}) failed: {why or 'KubeRay names no reason'}{tail}")

    def _clean_up(self, run: PlannedRun, config_maps: Sequence[str], folder: Path,
                  failure: CommandError | None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "job.log").write_text(self.namespace.submitter_log(run.name))
        except KubeError as error:
            self.screen.line(f"{run.label}: its log cannot be had: {error}")
        try:
            self.namespace.delete("RayJob", run.name)
            for name in config_maps:
                self.namespace.delete("ConfigMap", name)
            self._wait_until_gone(run.name)
        except KubeError as error:
            first = "" if failure is None else f"{failure}\nand "
            raise CommandError(
                f"{first}RayJob {run.name} could not be deleted ({error}); it may still run and cost money: "
                f"kubectl --namespace {self.namespace.name} delete rayjob/{run.name} "
                f"{' '.join(f'configmap/{name}' for name in config_maps)}") from None
        self.screen.line(f"{run.label}: RayJob {run.name} deleted")

    def _wait_until_gone(self, name: str) -> None:
        deadline = time.monotonic() + _GONE_SECONDS
        while self.namespace.get("RayJob", name):
            if time.monotonic() > deadline:
                raise KubeError(f"it is still there after {_GONE_SECONDS} s: KubeRay has not stopped it")
            time.sleep(min(1.0, _EVERY_SECONDS))

    def _forget(self, run: PlannedRun) -> None:
        """The checkpoint of a run that only measured is large, and of no use."""
        try:
            run_storage.remove(f"{self.storage}/{run.name}")
        except CommandError as error:
            self.screen.line(f"{run.label}: {error}; it holds a checkpoint, and costs its storage")


def cluster_back_end(namespace: Namespace, job: SubmittedJob, shape: Shape, storage: str | None, screen: Screen,
                     signals: Interrupts, bench_id: str) -> ClusterBackEnd:
    """A back end for a deployed cluster on which no other job runs.

    Raises:
        NothingToDoError: if the Ray cluster is not there, another job has it, or the storage is not known.
    """
    standing_cluster(namespace, job.cluster)
    _refuse_company(namespace, job.cluster, bench_id)
    storage = (storage or _storage(namespace, job.cluster)).rstrip("/")
    return ClusterBackEnd(namespace, storage, shape, screen, signals)


def _refuse_company(namespace: Namespace, cluster: str, bench_id: str) -> None:
    for other in namespace.list("RayJob"):
        status = other.get("status") or {}
        same = other["spec"].get("clusterSelector", {}).get("ray.io/cluster") == cluster
        ours = other["metadata"].get("labels", {}).get(BENCH_LABEL) == bench_id
        if same and not ours and not is_over(other):
            name = other["metadata"]["name"]
            raise NothingToDoError(
                f"RayJob {name} is not done ({status.get('jobDeploymentStatus') or 'no status yet'}) and has the "
                f"GPUs of RayCluster {cluster}; wait for it, or end it: kubectl --namespace {namespace.name} "
                f"delete rayjob/{name}")


def _storage(namespace: Namespace, cluster: str) -> str:
    """The storage of the deployed job: cdk.out only has a placeholder for the bucket."""
    found = set()
    for config_map in namespace.config_maps():
        if config_map["metadata"]["name"].startswith(f"{cluster}-settings-"):
            try:
                found.add(json.loads(config_map["data"]["train.json"])["placement"]["storage"])
            except (KeyError, TypeError, ValueError):
                continue
    if len(found) != 1:
        raise NothingToDoError(
            f"namespace {namespace.name} has {'no' if not found else 'more than one'} deployed job that names its "
            f"storage{''.join(f' {uri}' for uri in sorted(found))}; name it: --storage s3://BUCKET/runs (the "
            "TrainingStack's output Bucket)")
    return found.pop()
