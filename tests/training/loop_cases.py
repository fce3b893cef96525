"""The job's loop on each rank, with what it asks of Ray put in by hand."""

import itertools
import os
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from training import train


def work(job, local_world=None, nan_at=()):
    """`train.work` without Ray; rank 0's loss is not a number in the steps `nan_at`, counted from this start."""
    local_world = local_world or dist.get_world_size()
    context = SimpleNamespace(get_local_world_size=lambda: local_world)
    train.ray.train.get_context = lambda: context
    train.ray.train.get_preemption_info = lambda: None
    true_step, steps_done = train.step.train_step, itertools.count(1)

    def step(trained, *arguments, **named):
        if next(steps_done) not in nan_at or dist.get_rank():
            return true_step(trained, *arguments, **named)
        broken = trained.register_forward_hook(lambda _module, _inputs, loss: loss * float("nan"))
        try:
            return true_step(trained, *arguments, **named)
        finally:
            broken.remove()

    train.step.train_step = step
    torch.manual_seed(12345 + dist.get_rank())  # the job must not depend on what was before
    return train.work(job)["failure"]


def hang_at(job, step, rank=1, pids=None):
    """`work`, but `rank` hangs at this step, in code of its own; `pids`: where it then writes its process id."""
    true_step, steps_done = train.step.train_step, itertools.count(1)

    def hanging(trained, *arguments, **named):
        if next(steps_done) == step and dist.get_rank() == rank:
            if pids:
                Path(pids, str(rank)).write_text(str(os.getpid()))
            while True:
                time.sleep(0.1)
        return true_step(trained, *arguments, **named)

    train.step.train_step = hanging
    return work(job)


def spoil_weights_after(job, step):
    """`work`, but after this step a weight of the last rank is infinite, as from a bit that flipped."""
    true_step, steps_done = train.step.train_step, itertools.count(1)

    def spoiling(trained, *arguments, **named):
        numbers = true_step(trained, *arguments, **named)
        if next(steps_done) == step and dist.get_rank() == dist.get_world_size() - 1:
            _first_shard(trained)[0] = float("inf")
        return numbers

    train.step.train_step = spoiling
    return work(job)


def _first_shard(trained):
    parameter = next(trained.parameters()).detach()
    return parameter.to_local().view(-1) if isinstance(parameter, DTensor) else parameter.view(-1)
