"""Run the synthesized job on this machine: `eagleray rehearse`."""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ops.corpus import write_corpus
from ops.errors import CommandError
from ops.interrupts import Interrupts, interrupts
from ops.job_run import Follower, JobFailedError, connect, submit
from ops.local_cluster import LocalCluster, Node, local_cluster
from ops.replacements import LaptopPlaces, Replacement, for_laptop, replacements
from ops.report import write_report
from ops.result_folder import RECORD, staged
from ops.screen import Screen
from ops.slot import own_slot
from ops.submitted_job import PodShape, SubmittedJob, read_submitted_job
from settings.loading import CONFIG_DIR
from training.wire_words import lines_for_people

CLUSTER_SECONDS = 120
_LOG_LINES = 30


@dataclass(frozen=True)
class Request:
    """What the person asked for."""

    cdk_out: Path
    out: Path
    steps: int | None
    minutes: int


def rehearse(request: Request, screen: Screen) -> Path:
    """Rehearse the one RayJob of `request.cdk_out`; returns the folder of results.

    Raises:
        CommandError: with the reason; `request.out` is then as it was before.
    """
    submitted = read_submitted_job(request.cdk_out)
    training = laptop_training()
    screen.line(f"RayJob {submitted.name} from {request.cdk_out}: {submitted.entrypoint}")
    with interrupts() as signals, ExitStack() as stack:
        staging = stack.enter_context(staged(request.out))
        slot = stack.enter_context(own_slot())
        cluster = stack.enter_context(local_cluster(slot))
        stack.callback(signals.clean_up_undisturbed)  # last in, first out: before the cluster is stopped
        places = laptop_places(submitted, cluster.folder, staging / "runs")
        rehearsed = for_laptop(submitted, training, places, request.minutes * 60, request.steps)
        found = replacements(submitted, rehearsed)
        screen.replacements(found)
        _bring_up(cluster, rehearsed, places, screen, signals)
        _run(cluster, rehearsed, staging, screen, signals, request.out)
        signals.clean_up_undisturbed()
        _gather(staging, rehearsed.job.name, request.out.absolute(), screen)
        _record(staging, submitted, rehearsed, found, screen)
    return request.out


def laptop_training() -> Mapping[str, Any]:
    """The `training:` part of config/local.yaml, as written.

    Raises:
        CommandError: if the file has none.
    """
    path = CONFIG_DIR / "local.yaml"
    try:
        training = yaml.safe_load(path.read_text())["training"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        raise CommandError(f"{path}: has no readable training: part; restore it from git") from None
    if not isinstance(training, dict):
        raise CommandError(f"{path}: training must be a group of settings")
    return training


def laptop_places(job: SubmittedJob, scratch: Path, storage: Path) -> LaptopPlaces:
    """Folders below `scratch` for what the job reads; `storage` for what it leaves."""
    # The submitter's file system, as a folder: /code in the pod is <scratch>/submitter/code here.
    return LaptopPlaces(working_dir=f"{scratch}/submitter{job.working_dir}", text=f"{scratch}/text/stdlib.txt",
                        tokenizer=f"{scratch}/text/tokenizer", storage=str(storage))


def _bring_up(cluster: LocalCluster, job: SubmittedJob, places: LaptopPlaces, screen: Screen,
              signals: Interrupts) -> None:
    """Start the cluster; while it boots, write the submitter's files and the text."""
    count = job.workers.count
    with screen.phase("cluster", f"Ray cluster of a CPU-less head and {count} node{'s' * (count != 1)}"):
        cluster.start(_node("head", job.head), [_node(f"worker-{n}", job.workers) for n in range(1, count + 1)])
        write_volume(job, cluster.folder / "submitter")
        write_text(job, places)
        cluster.wait_until_ready(CLUSTER_SECONDS, signals.check)


def write_text(job: SubmittedJob, places: LaptopPlaces) -> None:
    """The text and the tokenizer that the job reads."""
    architecture = job.job.training.model.architecture or {}
    write_corpus(Path(places.text).parent, architecture.get("vocab_size", 2048))


def write_volume(job: SubmittedJob, root: Path) -> None:
    """The submitter's ConfigMap volumes below `root`, with the links that the kubelet makes.

    mountPath/..data -> ..1/, mountPath/training -> ..data/training
    """
    for mount in job.mounts:
        base = root / mount.lstrip("/")
        inside = {Path(path).relative_to(mount): data for path, data in job.files.items()
                  if Path(path).is_relative_to(mount)}
        for path, data in inside.items():
            target = base / "..1" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        (base / "..data").symlink_to("..1")
        for top in {path.parts[0] for path in inside}:
            (base / top).symlink_to(Path("..data") / top)


def _node(name: str, pod: PodShape) -> Node:
    return Node(name, pod.ray_start, pod.environment)


def _run(cluster: LocalCluster, job: SubmittedJob, staging: Path, screen: Screen, signals: Interrupts,
         out: Path) -> None:
    def check() -> None:
        signals.check()
        cluster.check()

    client = connect(cluster.dashboard, cluster.token)
    began, first = time.monotonic(), None
    submission = submit(client, job)
    screen.line(f"submitted as {submission}; its workers start")
    follower = Follower(client, submission, staging / "runs" / job.job.name / "metrics.jsonl")
    try:
        with screen.training(job.job.training.steps) as steps:
            for rows in follower.steps(job.deadline_seconds or 0, check):
                for row in rows:
                    first = first or time.monotonic()
                    steps.show(row)
    except JobFailedError as failure:
        raise explained(failure, staging / "runs" / job.job.name,
                        out.with_name(f"{out.name}.failed.log")) from None
    done = time.monotonic()
    screen.seconds |= {"submit to first step": round((first or done) - began, 1),
                       "first step to end": round(done - (first or done), 1)}
    (staging / "job.log").write_text(follower.log())


def explained(failure: JobFailedError, run: Path, log: Path) -> CommandError:
    """The trainer's own reason where the folder `run` has one, and the end of the log, which is kept in `log`."""
    reason = str(failure)
    with suppress(OSError, ValueError, AttributeError):
        reason = json.loads((run / "summary.json").read_text()).get("reason") or reason
    log.write_text(failure.log)
    tail = "\n".join(f"  | {line}" for line in failure.log.rstrip().splitlines()[-_LOG_LINES:])
    return CommandError(f"the job failed: {reason}\n{tail}\nthe whole log: {log}")


def _gather(staging: Path, name: str, out: Path, screen: Screen) -> None:
    """Bring what the run left to the top of the results, and say what it found of its wire."""
    run = staging / "runs" / name
    for wanted in ("summary.json", "metrics.jsonl", "checkpoints"):
        if not (run / wanted).exists():
            raise CommandError(f"the job ended well but left no {wanted} under its storage")
        (run / wanted).rename(staging / wanted)
    shutil.rmtree(staging / "runs")  # Ray's own lists, which name paths of before
    summary = json.loads((staging / "summary.json").read_text())
    if isinstance(summary.get("checkpoint"), str):
        summary["checkpoint"] = summary["checkpoint"].replace(str(run), str(out))
    summary["kind"] = "rehearsal"
    (staging / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if "required" in summary.get("transport", {}):
        for line in lines_for_people(summary["transport"]):
            screen.line(line)


def _record(staging: Path, submitted: SubmittedJob, rehearsed: SubmittedJob, found: list[Replacement],
            screen: Screen) -> None:
    """What was replaced, how long each part took, and the report."""
    record = {
        "kind": "rehearsal",
        "job": submitted.name,
        "entrypoint": submitted.entrypoint,
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "seconds": screen.seconds,
        "replaced": [vars(item) for item in found],
        "settings": rehearsed.job.model_dump(mode="json"),
    }
    (staging / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    with screen.phase("report", "report"):
        write_report(staging, staging / "report.html")
