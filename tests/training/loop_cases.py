"""The job's loop on each rank, with the two things of Ray that it asks for put in by hand."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

from training import train


def work(job, local_world=None, nan_at=None):
    """`train.work` without Ray; the loss is not a number at step `nan_at`."""
    local_world = local_world or dist.get_world_size()
    context = SimpleNamespace(get_local_world_size=lambda: local_world)
    train.ray.train.get_context = lambda: context
    root = Path(job["placement"]["storage"], job["name"])
    train.publish = lambda local, path: shutil.copytree(local, root / path, dirs_exist_ok=True)
    true_step, steps_done = train.step.train_step, []

    def step(*arguments, **named):
        loss, norm = true_step(*arguments, **named)
        steps_done.append(loss)
        return (loss * float("nan") if len(steps_done) == nan_at else loss), norm

    train.step.train_step = step
    torch.manual_seed(12345 + dist.get_rank())  # the job must not depend on what was before
    return train.work(job)["failure"]
