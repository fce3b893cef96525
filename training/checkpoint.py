"""Checkpoints of a sharded model and its optimizer, whole or not at all.

Each rank writes its shards to a local folder (torch.distributed.checkpoint), `publish` brings them to the
run's storage, and when all ranks are through, rank 0 writes `complete.json` with every file's size. A
folder without it, or with a file of another size, is no checkpoint. Ray's own record is not asked: a
report made just before a crash can be lost though the files are there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from training.storage import RunFolder

_MARK = "complete.json"


def save_shards(model: nn.Module, optimizer: Optimizer, folder: str) -> None:
    """Write this rank's part of model and optimizer into a local folder. Call on all ranks.

    `model` is the transformers model inside of CausalLMWithLoss: the names are those of transformers.
    """
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_saver.save(state, checkpoint_id=folder)


def load_shards(model: nn.Module, optimizer: Optimizer, folder: str) -> None:
    """Fill model and optimizer from a folder written on any number of ranks. Call on all ranks."""
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    state_dict_loader.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])


def newest(folder: RunFolder) -> int | None:
    """The step of the newest complete checkpoint in storage; None if there is none."""
    return max(complete_steps(folder), default=None)


def checkpoint_path(step: int) -> str:
    """`checkpoints/step-00000020`, relative to the run's folder."""
    return f"checkpoints/step-{step:08d}"


def save(
    folder: RunFolder,
    model: nn.Module,
    optimizer: Optimizer,
    step: int,
    keep: int,
    publish: Callable[[str, str], None],
) -> None:
    """Save a checkpoint and delete what is older than the `keep` newest. Call on all ranks.

    Args:
        folder: of the run.
        model, optimizer: as for `save_shards`.
        step: optimizer steps done.
        keep: complete checkpoints that remain.
        publish: brings a local folder to a path of the run's storage; called on every rank.
    """
    path = checkpoint_path(step)
    with tempfile.TemporaryDirectory(prefix="eagleray-checkpoint-") as local:
        save_shards(model, optimizer, local)
        publish(local, path)
    dist.barrier()
    if dist.get_rank() == 0:
        files = {name: size for name, size in folder.sizes(path).items() if name != _MARK}
        folder.write_json(f"{path}/{_MARK}", {"step": step, "world_size": dist.get_world_size(), "files": files})
        _delete_old(folder, keep)


def resume(folder: RunFolder, model: nn.Module, optimizer: Optimizer) -> int:
    """Load the newest complete checkpoint. Call on all ranks.

    Returns:
        Its step; 0 where there is none.
    """
    found: list[int | None] = [newest(folder) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found, src=0)
    step = found[0]
    if step is None:
        return 0
    local = folder.on_this_node(checkpoint_path(step))
    load_shards(model, optimizer, str(local))
    dist.barrier()
    if not folder.is_local:
        shutil.rmtree(local, ignore_errors=True)  # the copy of this node; all ranks have read it
    return step


def complete_steps(folder: RunFolder) -> list[int]:
    """Steps of the complete checkpoints in storage, oldest first."""
    steps = []
    for name in folder.folders("checkpoints"):
        mark = folder.read_json(f"checkpoints/{name}/{_MARK}")
        if mark and mark["files"].items() <= folder.sizes(f"checkpoints/{name}").items():
            steps.append(int(mark["step"]))
    return sorted(steps)


def _delete_old(folder: RunFolder, keep: int) -> None:
    kept = {checkpoint_path(step) for step in complete_steps(folder)[-keep:]}
    newest_kept = max(kept)
    for name in folder.folders("checkpoints"):
        path = f"checkpoints/{name}"
        if path not in kept and path < newest_kept:
            folder.remove(path)
