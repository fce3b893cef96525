"""The same training over EFA and over TCP, one run after the other: `eagleray bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from k8s.files import write_manifests
from ops.bench_job import PlannedRun, Shape, Wires, planned_runs, run_objects
from ops.bench_record import Record, opened
from ops.bench_report import write_bench_report
from ops.bench_result import Comparison, RunResult, compare, read_result
from ops.errors import CommandError
from ops.interrupts import Interrupts, interrupts
from ops.screen import Screen
from ops.submitted_job import SubmittedJob, read_objects, submitted_job
from ops.two_links import enter_own_network


class BackEnd(Protocol):
    """Where runs happen."""

    @property
    def wires(self) -> Wires:
        """What is compared here."""
        ...

    @property
    def storage(self) -> str:
        """Folder or s3:// URI below which each run leaves its results."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What makes the runs so far no comparison, besides their transport verdicts."""
        ...

    def run(self, run: PlannedRun, objects: Sequence[dict[str, Any]], folder: Path) -> None:
        """Run `objects` (ConfigMap, RayJob) to the end; results in `folder`."""
        ...


@dataclass(frozen=True)
class Request:
    """What the person asked for. `storage` in place of the deployed job's, for a cluster."""

    cdk_out: Path
    out: Path
    shape: Shape
    storage: str | None = None


def bench(request: Request, screen: Screen) -> Comparison:
    """Compare on the cluster that KUBECONFIG names; results in `request.out`.

    Raises:
        CommandError: if a run fails or cannot be made; what is finished stays, and the same request goes on.
    """
    from ops.bench_cluster import cluster_back_end
    from ops.kube import connect

    objects = read_objects(request.cdk_out)
    job = submitted_job(objects, request.cdk_out)
    namespace = connect(job.namespace)
    where = f"{namespace.context}/{namespace.name}"
    with interrupts() as signals, opened(request.out, Record("measured", job.name, where, request.shape)) as record:
        screen.line(f"RayCluster {job.cluster} in namespace {namespace.name} of context {namespace.context}")
        back_end = cluster_back_end(namespace, job, request.shape, request.storage, screen, signals, record.id)
        return _compare(request, record, back_end, screen, signals)


def rehearse_bench(request: Request, screen: Screen) -> Comparison:
    """The same on this machine: a local Ray cluster, two links, gloo. Says nothing about EFA."""
    from ops.bench_rehearsal import rehearsal_back_end

    objects = read_objects(request.cdk_out)
    job = submitted_job(objects, request.cdk_out)
    no_links = enter_own_network()
    wanted = Record("rehearsal", job.name, "this machine", request.shape)
    with interrupts() as signals, opened(request.out, wanted) as record, \
            rehearsal_back_end(objects, job, request.shape, screen, signals, no_links) as back_end:
        return _compare(request, record, back_end, screen, signals)


def _compare(request: Request, record: Record, back_end: BackEnd, screen: Screen,
             signals: Interrupts) -> Comparison:
    record.begin(request.out)
    results = _run_all(request, record, back_end, screen, signals)
    comparison = compare(back_end.wires, results, back_end.problems)
    record.result = comparison.as_json()
    record.save(request.out)
    write_bench_report(request.out / "report.html", record, comparison)
    return comparison


def _run_all(request: Request, record: Record, back_end: BackEnd, screen: Screen,
             signals: Interrupts) -> list[RunResult]:
    objects = read_objects(request.cdk_out)
    job = submitted_job(objects, request.cdk_out)
    runs = planned_runs(job, record.id, back_end.wires, record.shape.repeats)
    if record.done:
        screen.line(f"going on in {request.out}: {len(record.done)} of {len(runs)} runs are done")
    results: list[RunResult] = []
    try:
        for run in runs:
            results.append(_run(run, request, record, back_end, objects, job))
            _tell(results[-1], screen)
            signals.listen_again()
    except (KeyboardInterrupt, CommandError):
        if record.kind == "measured":
            screen.line(f"{len(record.done)} of {len(runs)} runs are kept in {request.out}; the same command goes "
                        "on from there")
        raise
    return results


def _run(run: PlannedRun, request: Request, record: Record, back_end: BackEnd, objects: Sequence[dict[str, Any]],
         job: SubmittedJob) -> RunResult:
    """The run's result; a run that is done is only read."""
    folder = request.out / "runs" / run.label
    if run.label not in record.done:
        made = run_objects(objects, job, run, record.shape, record.id, back_end.storage)
        write_manifests(folder / "manifests", made)
        back_end.run(run, made, folder)
        record.done.append(run.label)
        record.save(request.out)
    return read_result(folder, run, record.shape.warm_up)


def _tell(result: RunResult, screen: Screen) -> None:
    screen.line(f"{result.label}: {result.tokens_per_second:,.0f} tokens/s, {result.steps_per_second:.4g} steps/s, "
                f"transport {result.verdict}")
    if result.problem:
        screen.line(f"{result.label}: INVALID: {result.problem}")
