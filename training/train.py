"""Train a causal language model on a Ray cluster: `python -m training.train train.json`.

Needs no cluster: without RAY_ADDRESS a local Ray is started for the run. Exit code 0 only for a run that
went to its last step; 1 for a run that failed, 2 for a train.json that cannot run or a folder that another run
holds. The reason is the last line on stderr, and for 0 and 1 stands in summary.json.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
import torch.distributed as dist
from pydantic import ValidationError
from ray.exceptions import RayError
from transformers import PretrainedConfig

from training import checkpoint, data, metrics, model, parallel, place, step, topology, watch, watchdog, wire
from training.checkpointing import Checkpoints
from training.config import TIME_LIMIT, TURN_TIMEOUT, TrainJob
from training.errors import AgreedError, JobError, first_line, together
from training.final_export import export_at_end
from training.lease import Lease
from training.live_metrics import LiveMetrics
from training.node_hours import note_end
from training.nodes import Room
from training.preemption import Notice
from training.pretrained import Pretrained
from training.shape import ModelShape, UnknownShapeError, known_shape
from training.side_channel import SideChannel
from training.startup import Startup
from training.storage import RunFolder, absolute
from training.summary import summarise
from training.time_limit import time_limit
from training.tokenising import tokenise_first, tokens_of
from training.turn import turn
from training.workers import ELASTIC_START_S, until_done

MOST_JOB_BYTES = 1 << 20
START_TIMEOUT = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"


def main(arguments: list[str]) -> int:
    """Run train.json; returns the exit code."""
    if len(arguments) != 1:
        print("usage: python -m training.train train.json", file=sys.stderr)
        return 2
    try:
        job = read_job(Path(arguments[0]))
        without_auto(job, lambda: known_shape(job.training.model))  # what cannot fit holds no GPU
        data.check_before_start(job.training.data)
        folder = RunFolder(job.placement.storage, job.name)
    except JobError as error:
        print(error, file=sys.stderr)
        return 2
    with ExitStack() as held:
        try:
            if "RAY_ADDRESS" in os.environ:  # a cluster that others may use too
                held.enter_context(turn(os.environ["RAY_ADDRESS"], job.name, seconds_of(TURN_TIMEOUT, patience())))
            # A job that replaces another one waits for its folder as long as it waits for its GPUs.
            held.enter_context(Lease.take(folder, job.name, lost=end_at_once, wait_seconds=patience()))
        except JobError as error:
            print(f"{job.name} refused: {error}", file=sys.stderr)
            return 2
        with time_limit(seconds_of(TIME_LIMIT), lambda reason: end_with_summary(job, folder, reason)):
            failure = fit(job, folder)
            exported = export_at_end(job) if failure is None else None
        failure = sum_up(job, folder, failure, exported)
    ray.shutdown()  # its last words come before ours
    if failure is not None:
        print(f"{job.name} failed: {failure}", file=sys.stderr)
        return 1
    print(f"{job.name} succeeded: {folder.uri}/summary.json")
    return 0


def patience() -> float:
    """Seconds that Ray Train, and so everything before it, waits for nodes; 0: no limit is set."""
    return seconds_of(START_TIMEOUT)


def seconds_of(variable: str, default: float = 0) -> float:
    """Seconds that the job's environment names."""
    return float(os.environ.get(variable, default))


def sum_up(job: TrainJob, folder: RunFolder, failure: str | None, exported: dict[str, str | None] | None,
           ) -> str | None:
    """Write summary.json. Returns the reason if the run failed, also of what cannot be written."""
    try:
        note_end(folder)
        folder.write_json("summary.json", summarise(job, folder, failure, exported))
    except OSError as error:
        return failure or f"summary.json cannot be written to {folder.uri}: {first_line(error)}"
    return failure


def end_with_summary(job: TrainJob, folder: RunFolder, reason: str) -> None:
    """End the driver, and Ray its workers with it, from another thread."""
    print(f"{job.name} failed: {sum_up(job, folder, reason, None)}", file=sys.stderr, flush=True)
    os._exit(1)


def end_at_once(reason: str) -> None:
    """End the driver, and Ray its workers with it: the folder is another run's now, and gets no summary of ours."""
    print(f"failed: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def read_job(path: Path) -> TrainJob:
    """The job in train.json; its storage as an absolute path.

    Raises:
        JobError: one line with the file, the setting, what is wrong.
    """
    try:
        with path.open("rb") as stream:
            written = stream.read(MOST_JOB_BYTES + 1)
        if len(written) > MOST_JOB_BYTES:
            raise JobError(f"{path}: larger than 1 MiB; a job is a few KiB, and no ConfigMap holds more")
        job = TrainJob.model_validate_json(written)
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        found = [(".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, ")) for e in error.errors()]
        what = "; ".join(f"{where}: {text}" if where else text for where, text in found[:20])
        what += f"; and {len(found) - 20} more" if len(found) > 20 else ""
        raise JobError(f"{path}: " + "".join(c if c.isprintable() else "?" for c in what[:2000])) from error
    placement = job.placement.model_copy(update={"storage": absolute(job.placement.storage)})
    return job.model_copy(update={"placement": placement})


def without_auto(job: TrainJob, shape: Callable[[], ModelShape | None],
                 nodes: int | None = None) -> tuple[TrainJob, list[str]]:
    """The job with a value for every `auto`, and the reasons; `nodes`: fewer than it wants, if it has them.

    Raises:
        JobError: if the job cannot run on its GPUs.
    """
    try:
        known = shape()
    except UnknownShapeError:
        known = None
    try:
        return topology.resolve_on(job, known, nodes or job.placement.nodes)
    except ValueError as error:
        raise JobError(str(error)) from error


def fit(job: TrainJob, folder: RunFolder) -> str | None:
    """Run the job on all workers, restarting after failures. Returns the reason if it failed."""
    seconds = patience()
    try:
        folder.remove("summary.json")
        folder.remove(wire.FILE)
        start_ray(job)
        tokenise_first(job, folder, seconds or None)
        return until_done(job, work, seconds)
    except ray.train.WorkerGroupError as error:
        return watchdog.reason(folder) or worker_failure(error.worker_failures)
    except ray.train.ControllerError as error:
        return first_line(error.controller_failure)
    except (ray.train.TrainingFailedError, OSError, RuntimeError, ValueError) as error:
        return first_line(error)


def start_ray(job: TrainJob) -> None:
    """Join the cluster that RAY_ADDRESS names (a submitted job always has it), or start one here."""
    os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # else each line of a worker shows twice
    if job.placement.is_elastic:
        os.environ[START_TIMEOUT] = str(ELASTIC_START_S)
    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        ray.init(address="local", num_cpus=job.placement.world_size)


def worker_failure(failures: dict[int, Exception]) -> str:
    """The failure that the others came from: a dead process before an exception, then the lowest rank."""
    causes = {rank: getattr(error, "health_check_failure", error) for rank, error in failures.items()}
    dead = {rank: error for rank, error in causes.items() if isinstance(error, RayError)}
    rank, error = min((dead or causes).items(), key=lambda item: item[0])
    if dead:
        return f"rank {rank}: its process or node died ({first_line(error)})"
    return f"rank {rank}: {type(error).__name__}: {first_line(error)}"


def work(job: dict[str, Any]) -> dict[str, str | None]:
    """Every rank's part. What a retry cannot cure is returned; anything else is raised, and Ray restarts."""
    parsed = TrainJob.model_validate(job)
    try:
        with watchdog.Watchdog(parsed.training.hang) as dog:
            return {"failure": None, "left": train(parsed, dog)}
    except AgreedError as error:
        return {"failure": str(error)}


def train(written: TrainJob, dog: watchdog.Watchdog) -> str | None:
    """One rank, from the newest checkpoint to the last step; `written`: the job as in train.json.

    Returns:
        Why it left before the last step, with a checkpoint: a node is about to go, or has come.
    """
    startup = Startup()
    startup.ended("imports")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = RunFolder(written.placement.storage, written.name)
    local_world = ray.train.get_context().get_local_world_size()
    node = ray.util.get_node_ip_address()
    # Nothing goes over NCCL before it is proven: where it fails, it fails late and names no cause.
    channel = SideChannel(written.training.fabric.timeout_seconds, node)
    dog.watch(folder, channel)
    precision = written.training.precision
    placed = together(lambda: place.on_its_nodes(written, world), channel.group)
    device = together(lambda: place.check_device(placed.placement, local_world, precision), channel.group)
    previous = together(lambda: place.check_same_run(folder, written), channel.group)
    startup.ended("process_group")
    proof = wire.Wire(placed, folder, channel, wire.Here(device, os.environ.get("NCCL_DEBUG_FILE")))
    proof.prove()
    startup.ended("wire")
    job, reasons, architecture, sequences = together(lambda: read_inputs(written, placed.placement.nodes, folder))
    config = job.training
    startup.ended("inputs")

    nodes, a_node = job.placement.nodes, job.placement.workers_per_node
    mesh = together(lambda: parallel.make_mesh(config.parallel, nodes, a_node, device.type))
    pretrained = None
    if config.model.weights == "pretrained" and checkpoint.newest(folder) is None:
        pretrained = Pretrained.load(config.model, architecture)
    trained = parallel.build(architecture, config.parallel, mesh, device, seed=config.seed,
                             precision=config.precision, pretrained=pretrained)
    optimizer = step.make_optimizer(trained, config.optimizer)
    startup.ended("weights")
    checkpoints = Checkpoints(folder, config.checkpoint, trained.model, optimizer)
    resumed = checkpoints.resume()
    done = resumed.step
    startup.ended("checkpoint")

    place.note_start(folder, written, previous, resumed, reasons, device, node)
    live = LiveMetrics(job, proof, resumed_at=done, starts_before=previous.get("starts", 0)) if rank == 0 else None
    log = checkpoints.log = metrics.MetricsLog(folder, done, config.steps, reasons, live) if rank == 0 else None
    flops = metrics.flops_per_token(trained, architecture, config.sequence_length)
    proof.start_counting()
    meter = metrics.StepMeter(job.tokens_per_step, world, flops, device)
    watched = watch.StepWatch(config, world, meter, log)
    prefetched = data.Prefetched(sequences, config, rank, world, device)
    notice = Notice(ray.train.get_preemption_info, Room(written.placement, nodes))

    with live or nullcontext(), checkpoints:
        for number in range(done + 1, config.steps + 1):
            torch.manual_seed(config.seed + number * world + rank)  # dropout, the same after a restart
            rate = step.learning_rate(config.optimizer, number, config.steps)
            dog.at("data", number)
            batches = prefetched.step(number)
            dog.at("step", number)
            loss, norm = step.train_step(
                trained, optimizer, mesh, batches, learning_rate=rate, clip_norm=config.optimizer.clip_norm
            )
            watched.launched(number, loss, norm, rate, prefetched.waited_seconds)
            if number == done + 1:
                watched.catch_up()
                startup.ended("first_step")
                place.note_startup(folder, startup, done)
                proof.after_first_step()
                meter.start()
            every = config.checkpoint.every_steps
            leaves = notice.came() if number < config.steps else None
            if number == config.steps or leaves or (every and number % every == 0):
                watched.catch_up()
                dog.at("checkpoint", number)
                watch.check_finite(trained.model, optimizer, number)
                if leaves:
                    checkpoints.save_now(number)
                    return f"{leaves}: saved and left after step {number}"
                checkpoints.save(number)
                meter.start()
    proof.after_last_step()


def read_inputs(written: TrainJob, nodes: int, folder: RunFolder,
                ) -> tuple[TrainJob, list[str], PretrainedConfig, data.Sequences]:
    """The job without `auto` on its `nodes`, and why; the model's architecture; the data. Reads no weights."""
    config = written.training
    architecture = model.read_config(config.model)
    model.check_fits(architecture, config.sequence_length)
    model.check_precision(architecture, config.precision)
    empty = model.empty_model(architecture)
    model.decoder_layers(empty.model)
    if config.data.documents == "apart":
        model.check_documents_apart(empty)
    job, reasons = without_auto(written, lambda: ModelShape.from_config(architecture.to_dict()), nodes)
    sequences = data.open_data(config, architecture.get_text_config().vocab_size, tokens_of(folder))
    return job, reasons, architecture, sequences


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
