"""Where a rank runs, and run.json: the starts of a run and what it ran on."""

from __future__ import annotations

import platform
import socket
import time
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from training import checkpoint, elastic, model_folder, node_hours, tokenising
from training.checkpointing import Resumed
from training.config import Placement, TrainJob
from training.errors import JobError
from training.gather import gathered
from training.metrics import read_metrics
from training.startup import Startup, for_people, process_age
from training.storage import RunFolder

_FP8_CAPABILITY = (8, 9)
"""CUDA compute capability of Ada, the first with fp8 matrix units; Hopper is 9.0."""


def on_its_nodes(job: TrainJob, world: int) -> TrainJob:
    """The job on the nodes that `world` ranks fill.

    Raises:
        JobError: if they do not fill whole nodes, or not as many as the job may run on.
    """
    place = job.placement
    nodes, over = divmod(world, place.workers_per_node)
    if over or nodes not in elastic.sizes(place):
        raise JobError(f"{world} ranks do not fill {elastic.sizes_said(place)} nodes with {place.workers_per_node} "
                       "each (gpu.nodes, gpu.min_nodes, gpu.instance_type)")
    return job.model_copy(update={"placement": elastic.on(place, nodes)})


def check_device(placement: Placement, local_world: int, precision: str = "bf16") -> torch.device:
    """This rank's device. `local_world`: ranks on this node.

    Raises:
        JobError: if the rank lacks the GPU that it should have, or its node has another number of ranks, or
            `precision` is fp8 and the device has no units for it.
    """
    here = socket.gethostname()
    if local_world != placement.workers_per_node:
        raise JobError(f"node {here} has {local_world} ranks where the job wants {placement.workers_per_node} "
                       f"on each of {placement.nodes} nodes")
    if placement.device == "cpu":
        if precision == "fp8":
            raise JobError("training.precision fp8 needs GPUs with fp8 units, and this job runs on CPUs; use bf16")
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise JobError(f"a rank on node {here} has no usable CUDA device, and the job wants one "
                       "(placement.device cuda)")
    device = torch.device("cuda", torch.cuda.current_device())
    if precision == "fp8" and torch.cuda.get_device_capability(device) < _FP8_CAPABILITY:
        raise JobError("training.precision fp8 needs GPUs with fp8 units (Ada, Hopper or later), and node "
                       f"{here} has {torch.cuda.get_device_name(device)}; use bf16")
    return device


def check_same_run(folder: RunFolder, job: TrainJob) -> dict[str, Any]:
    """What an earlier start of this run noted in run.json; {} for a new run.

    Raises:
        JobError: if checkpoints of another training lie under this run's name.
    """
    previous = folder.read_json("run.json") or {}
    if previous.get("config_hash", job.config_hash()) == job.config_hash():
        return previous
    if checkpoint.newest(folder) is not None:
        raise JobError(f"{folder.uri} holds checkpoints of a training with other settings "
                       f"({previous['config_hash']}, this is {job.config_hash()}); use another name or remove it")
    return {}


def note_start(folder: RunFolder, job: TrainJob, previous: dict[str, Any], resumed: Resumed, reasons: list[str],
               device: torch.device, node: str) -> None:
    """Let rank 0 write run.json: that the run started (once more), how, where, and with which versions.

    Call on all ranks. `reasons`: of what was chosen for `auto`; `node`: the address of this one.
    """
    ranks = gathered({"rank": dist.get_rank(), "node": node, "device": _device_name(device)})
    if dist.get_rank() == 0:
        rented, nodes = job.placement.rented, len(ranks) // job.placement.workers_per_node
        held = node_hours.with_start(previous.get("held", []), node_hours.job_of(folder), nodes,
                                     time.time() - process_age(), _last_step(folder))
        folder.write_json("run.json", {
            "config_hash": job.config_hash(),
            "training": job.training.model_dump(mode="json"),
            "starts": previous.get("starts", 0) + 1,
            "resumed_at": resumed.step,
            "damaged_checkpoints": resumed.damaged,
            "choices": reasons,
            "ranks": ranks,
            "commits": commits(folder, job),
            "versions": _versions(device),
            "startup": previous.get("startup", []),
            "rented": rented and rented.model_dump(),
            "held": held,
        })


def note_startup(folder: RunFolder, startup: Startup, resumed_at: int) -> None:
    """Let rank 0 add to run.json how long this start took on how many ranks, and say it; after the first step."""
    if dist.get_rank() == 0:
        record = {**startup.record(resumed_at), "world_size": dist.get_world_size()}
        run = folder.read_json("run.json")
        folder.write_json("run.json", {**run, "startup": [*run["startup"], record]})
        print(for_people(record), flush=True)


def commits(folder: RunFolder, job: TrainJob) -> dict[str, str]:
    """What of model, data and tokenizer is on the Hub, by setting: the commits that their revisions meant."""
    model, tokens = job.training.model, folder.read_json(tokenising.FILE) or {}
    commit = model_folder.commit(model_folder.of_model(model)) if model.architecture is None else None
    return {**({"training.model.name": commit} if commit else {}), **tokens.get("commits", {})}


def _last_step(folder: RunFolder) -> float | None:
    """When the newest step was done that an earlier start has left in storage."""
    records = read_metrics(folder)
    return records[-1].get("time") if records else None


def _device_name(device: torch.device) -> str:
    """`NVIDIA L4`, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _versions(device: torch.device) -> dict[str, str]:
    versions = {name: version(name) for name in ("torch", "transformers", "ray")}
    versions["python"] = platform.python_version()
    if device.type == "cuda":
        import torch.cuda.nccl as nccl

        versions["cuda"] = torch.version.cuda or ""
        versions["nccl"] = ".".join(map(str, nccl.version()))
    return versions
