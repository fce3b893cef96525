"""The driver's part with Ray Train: how many workers, how often they start again, how long nodes are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from training import nodes, watchdog
from training.config import Placement, TrainJob

_COLLECTIVE_TIMEOUT_S = 600
# Ray's own default for both is to try for ever.
_CONTROLLER_FAILURES = 3
_DEPARTURES = 50
ELASTIC_START_S = 30
"""RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S of an elastic run. Ray Train learns up to 20 s late that a node is gone,
one that drains counts as there until it is gone, and until then it wants to start on them. Each such try ends after
these seconds, as a failure of its controller."""
_ELASTIC_TRIES = 6
"""Of them for each failure of the workers: longer than a node drains."""
_NEVER_S = 1e9

Loop = Callable[[dict[str, Any]], dict[str, str | None]]
"""Every rank's part: takes the job as JSON, and returns its `failure`, or why it `left`, if it did."""


def until_done(job: TrainJob, loop: Loop, seconds: float) -> str | None:
    """Run the workers, and again each time that they left because a node went or came; the reason if they failed.

    Args:
        seconds: that nodes are waited for; 0: without end.

    Raises:
        JobError: if an elastic job's fewest nodes are not there in time.
    """
    if job.placement.is_elastic:
        nodes.await_nodes(job.placement, seconds)
    for _ in range(_DEPARTURES + 1):
        result = trainer(job, loop, seconds).fit().return_value or {"failure": "the workers ended without a result"}
        if result["failure"] or not result["left"]:
            return result["failure"]
        print(f"{result['left']}; the workers start again where there are nodes", flush=True)
    return f"the workers left for nodes that went or came more than {_DEPARTURES} times"


def trainer(job: TrainJob, loop: Loop, seconds: float) -> TorchTrainer:
    """Ray Train's part: one worker a rank, ranks of a node in a row (Ray sorts them by node and GPU)."""
    place, failures = job.placement, job.training.max_failures
    on_gpu = place.device == "cuda"
    # A rank that hangs is to be named by the watchdog before a collective gives up and names nobody.
    collectives = max(_COLLECTIVE_TIMEOUT_S, int(watchdog.longest_wait(job.training.hang)) + 120)
    return TorchTrainer(
        loop,
        train_loop_config=job.model_dump(mode="json"),
        # Named here and never guessed: the driver runs on the head, which has no GPU.
        torch_config=TorchConfig(backend=place.backend, timeout_s=collectives),
        scaling_config=ScalingConfig(
            num_workers=_workers(place),
            elastic_resize_monitor_interval_s=_NEVER_S,  # preemption.py saves before more nodes are taken in
            use_gpu=on_gpu,
            resources_per_worker={"CPU": 1, "GPU": 1} if on_gpu else {"CPU": 1},
        ),
        run_config=RunConfig(
            name=job.name,
            storage_path=place.storage,
            callbacks=_callbacks(place, seconds),
            failure_config=FailureConfig(
                max_failures=failures,
                controller_failure_limit=(failures + 1) * _ELASTIC_TRIES if place.is_elastic else
                _CONTROLLER_FAILURES,
                max_preemption_failures=_DEPARTURES,
            ),
        ),
    )


def _workers(place: Placement) -> int | tuple[int, int]:
    return (place.fewest_nodes * place.workers_per_node, place.world_size) if place.is_elastic else place.world_size


def _callbacks(place: Placement, seconds: float) -> list[Any]:
    """Where an elastic run would wait for ever; that of a fixed number of workers has Ray Train's own limit."""
    if not place.is_elastic or not seconds:
        return []
    from training.patience import Patience

    return [Patience(seconds, nodes.too_few(place, seconds))]
