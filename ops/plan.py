"""What a training needs, costs and reaches, from data files alone: no AWS, no GPU, no torch.

The predictions are those of training/topology.py, by which the job itself picks mesh and batch when it starts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from eagleray import catalog
from settings import Settings
from settings.cost import Cost, dollars_an_hour, hourly_costs, rented
from settings.figure import Figure
from settings.prices import Prices
from training import plan as recipes
from training import topology
from training.config import ModelConfig, TrainConfig, TrainJob
from training.hardware import UnknownGpuError, gpus, hardware_of
from training.shape import ModelShape, known_shape

LONGEST_RUN_HOURS = 720
"""The most that ray.run_hours may be."""


@dataclass(frozen=True)
class Quota:
    """vCPUs that an account's quota must hold; `code` is None where no public source knows it."""

    code: str | None
    name: str
    vcpu: int


@dataclass(frozen=True)
class Prediction:
    """What is predicted of a training that fits. `training` has no `auto` left."""

    training: TrainConfig
    steps: int
    tokens_per_step: int
    memory: Figure
    room: Figure
    seconds_per_step: Figure
    tokens_per_second: Figure
    mfu: Figure
    hours: Figure
    dollars: Figure
    dollars_per_billion_tokens: Figure


@dataclass(frozen=True)
class Plan:
    """A training on its machines.

    `fits` is None where nothing can be predicted; `problem` then says why, and where it does not fit what
    would. `gpu_quota` is None where the nodes count towards none (Capacity Blocks). `warnings` are lines about
    a plan that fits and still ends badly.
    """

    label: str
    settings: Settings
    fits: bool | None
    problem: str
    gpu_quota: Quota | None
    system_quota: Quota
    costs: tuple[Cost, ...]
    dollars_per_hour: Figure
    prediction: Prediction | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]


def make_plan(label: str, settings: Settings, prices: Prices) -> Plan:
    """The plan of these settings; `label` is what the person called them."""
    costs = hourly_costs(rented(settings), settings.gpu.nodes, prices)
    hourly = dollars_an_hour(costs)
    fits, problem, prediction, reasons = _predict(settings, hourly)
    return Plan(label, settings, fits, problem, _gpu_quota(settings), _system_quota(settings), costs, hourly,
                prediction, reasons, (*_deadline(settings, prediction), *_reservation(settings, costs[0])))


def _predict(settings: Settings, hourly: Figure) -> tuple[bool | None, str, Prediction | None, tuple[str, ...]]:
    job = settings.train_job("s3://bucket/runs")
    shape, why_not = _shape(job.training.model)
    if shape is None:
        return None, why_not, None, ()
    try:
        resolved, reasons = topology.resolve(job, shape)
    except topology.TopologyError as error:
        return False, str(error), None, ()
    except UnknownGpuError as error:
        return None, f"nothing is predicted: {error}", None, ()
    lines = tuple(line for line in reasons if not line.startswith("predicted:"))
    return True, "", _figures(resolved, shape, hourly), lines


def _shape(model: ModelConfig) -> tuple[ModelShape | None, str]:
    try:
        shape = known_shape(model)
    except (ValueError, OSError) as error:
        return None, f"nothing is predicted for training.model {model.name}: {error}"
    return shape, ("" if shape else f"nothing is predicted: the sizes of training.model.name {model.name} are not "
                   "among training/shapes.json; name a folder with its config.json, or add them there")


def _figures(job: TrainJob, shape: ModelShape, hourly: Figure) -> Prediction:
    hardware = hardware_of(job.placement)
    assert hardware is not None  # the settings name only GPU types of the catalog
    found = recipes.predict(job.training, shape, hardware)
    gpu = gpus()[hardware.gpu]
    rate = f"{hardware.gpu} at {100 * gpu.achieved:.0f} % of {gpu.bf16_tflops:g} TFLOP/s, {gpu.basis}"
    hours = job.training.steps * found.time.seconds / 3600
    speed = found.time.tokens_per_second
    return Prediction(
        training=job.training,
        steps=job.training.steps,
        tokens_per_step=found.time.tokens,
        memory=Figure.predicted(found.memory.gib, "GiB", f"at most {found.memory.moment}"),
        room=Figure.predicted(hardware.room / 2**30, "GiB", "without CUDA context and NCCL"),
        seconds_per_step=Figure.predicted(found.time.seconds, "s", rate),
        tokens_per_second=Figure.predicted(speed, "tokens/s", "all GPUs"),
        mfu=Figure.predicted(found.time.mfu, "of peak"),
        hours=Figure.predicted(hours, "h", "training alone, once all nodes are up"),
        dollars=_spent(hourly, hours, "$", "training alone: nodes cost from their start to their end"),
        dollars_per_billion_tokens=_spent(hourly, 1e9 / speed / 3600, "$ per 10^9 tokens", ""),
    )


def _spent(hourly: Figure, hours: float, unit: str, note: str) -> Figure:
    """Published prices times predicted hours are predicted dollars."""
    if hourly.value is None:
        return Figure.unknown(unit, hourly.note)
    return Figure.predicted(hourly.value * hours, unit, note)


def _gpu_quota(settings: Settings) -> Quota | None:
    kind, node = settings.gpu.capacity.kind, settings.gpu.instance
    if kind == "capacity-block":  # its instances count towards no quota
        return None
    quota = catalog.quota(node.type, "spot" if kind == "spot" else "on-demand")
    return Quota(quota.code, quota.name, node.vcpu * settings.gpu.nodes)


def _system_quota(settings: Settings) -> Quota:
    node = catalog.instance_type(settings.system.instance_type)
    quota = catalog.quota(node.type, "on-demand")
    return Quota(quota.code, quota.name, node.vcpu * settings.system.nodes)


def _reservation(settings: Settings, nodes: Cost) -> tuple[str, ...]:
    """A reservation that the deployment makes is paid for whether its nodes run or not."""
    capacity = settings.gpu.capacity
    if capacity.kind != "reserve":
        return ()
    hours = capacity.hours + 1  # it ends on a full hour
    most = nodes.each.times(nodes.count * hours).value
    spent = "" if most is None else f", ${most:,.2f} for its nodes alone"
    beyond = "" if settings.ray.max_dollars is None else "; ray.max_dollars ends the job, and not the reservation"
    return (f"the reservation bills for up to {hours} hours (gpu.capacity.hours){spent}, also while no node runs"
            f"{beyond}",)


def _deadline(settings: Settings, prediction: Prediction | None) -> tuple[str, ...]:
    if prediction is None or prediction.hours.value is None:
        return ()
    hours, limit = prediction.hours.value, settings.run_limit
    if hours < limit.seconds / 3600:
        return ()
    enough = int(hours * 1.2) + 1
    raised = [f"ray.max_dollars={limit.dollars * enough * 3600 / limit.seconds:.0f}"] if limit.dollars else []
    raised += [f"ray.run_hours={enough}"] if settings.ray.run_hours < enough <= LONGEST_RUN_HOURS else []
    ways = " and ".join(raised)
    return (f"the job is stopped {limit.text}, and is predicted to take {hours:,.1f} hours; "
            f"use {ways + ', ' if ways else ''}more or faster nodes, or a shorter training",)


def as_json(plan: Plan) -> dict[str, Any]:
    """The plan for machines; keys are only ever added."""
    settings, node = plan.settings, plan.settings.gpu.instance
    return {
        "label": plan.label,
        "fits": plan.fits,
        "problem": plan.problem or None,
        "warnings": list(plan.warnings),
        "region": settings.region,
        "zone": settings.network.zone,
        "machines": {
            "basis": "published",
            "instance_type": node.type, "nodes": settings.gpu.nodes, "capacity": settings.gpu.capacity.kind,
            "gpu": node.gpu, "gpus_per_node": node.gpus, "gpus": node.gpus * settings.gpu.nodes,
            "gpu_memory_mib": node.gpu_mem_mib, "efa_interfaces_per_node": node.efa,
            "efa_interfaces": node.efa * settings.gpu.nodes, "network_gbps_per_node": node.net_mbps / 1000,
            "system_instance_type": settings.system.instance_type, "system_nodes": settings.system.nodes,
        },
        "quotas": [{"code": q.code, "name": q.name, "vcpu": q.vcpu, "basis": "published"}
                   for q in (plan.gpu_quota, plan.system_quota) if q],
        "costs": [{"what": c.what, "count": c.count, "each": c.each.as_json()} for c in plan.costs],
        "dollars_per_hour": plan.dollars_per_hour.as_json(),
        "ends": asdict(settings.run_limit),
        "training": None if plan.prediction is None else _training_json(plan.prediction),
        "reasons": list(plan.reasons),
    }


def _training_json(found: Prediction) -> dict[str, Any]:
    training, parallel = found.training, found.training.parallel
    return {
        "model": training.model.name,
        "steps": found.steps,
        "tokens": found.steps * found.tokens_per_step,
        "tokens_per_step": found.tokens_per_step,
        "sequence_length": training.sequence_length,
        "micro_batch": training.micro_batch,
        "accumulation": training.accumulation,
        "parallel": parallel.model_dump(mode="json"),
        **{name: getattr(found, name).as_json() for name in (
            "memory", "room", "seconds_per_step", "tokens_per_second", "mfu", "hours", "dollars",
            "dollars_per_billion_tokens")},
    }
