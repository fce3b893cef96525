"""Checkpoints of a training that goes on: saved beside it, and resumed from the newest that is whole.

The training's thread only copies its shards into host memory. A thread of each rank writes them to the run's
storage, over a process group of its own, and rank 0 marks the checkpoint complete when all ranks are through.

Storage may fail for a while: a save is tried again for `training.checkpoint.retry_minutes`, and the training
goes on meanwhile. A save that fails for good costs one checkpoint, not the run: the next one that is due is
written with the training waiting, and only if that fails too (or it was the last) the run ends. Earlier
checkpoints are never touched before a newer one is complete.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from training import checkpoint
from training.checkpoint import DamagedError, Record
from training.checkpoint_files import PlainValuesPlanner, ShardReader
from training.checkpoint_save import Saving, SavingGroup
from training.errors import AgreedError, first_line
from training.metrics import MetricsLog
from training.sections import CheckpointConfig
from training.storage import RunFolder


class Resumed(NamedTuple):
    """Where a start goes on."""

    step: int
    """Optimizer steps done; 0 without a checkpoint."""
    damaged: list[str]
    """Newer checkpoints that could not be used, one line each."""


class Checkpoints:
    """Those of one run. Make and use it on all ranks, on one thread.

    Args:
        folder: of the run.
        config: when to save, what to keep.
        model: the transformers model inside of CausalLMWithLoss: the names are those of transformers.
        optimizer: over the parameters of `model`.
    """

    def __init__(self, folder: RunFolder, config: CheckpointConfig, model: nn.Module, optimizer: Optimizer) -> None:
        self._folder, self._config, self._model, self._optimizer = folder, config, model, optimizer
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        self._stager = DefaultStager(StagingOptions(
            use_pinned_memory=on_gpu, use_shared_memory=False, use_async_staging=False,
            use_non_blocking_copy=on_gpu))
        self._group = SavingGroup()
        self._saving: Saving | None = None
        self.log: MetricsLog | None = None
        """On rank 0: what the saves cost goes into its records, and it is brought to storage with them."""

    def resume(self) -> Resumed:
        """Load the newest checkpoint that is whole.

        Raises:
            AgreedError: if there are checkpoints and none can be used.
        """
        damaged: list[str] = []
        steps = self._group.from_rank_zero(lambda: checkpoint.marked_steps(self._folder)[::-1])
        for step in steps:
            reason = self._load(step)
            if reason is None:
                return Resumed(step, damaged)
            damaged.append(f"checkpoint of step {step} cannot be used: {reason}")
            if dist.get_rank() == 0:
                print(f"WARNING: {damaged[-1]}; the one before it is tried", flush=True)
            self._group.from_rank_zero(lambda step=step, why=reason: checkpoint.set_aside(self._folder, step, why))
        lost = self._group.from_rank_zero(lambda: checkpoint.set_aside_steps(self._folder))
        if lost:
            raise AgreedError(
                f"{self._folder.uri} has checkpoints of steps {', '.join(map(str, lost))}, and all are damaged "
                f"(each has its reason in {checkpoint.DAMAGED}); to train from the beginning, use another name or "
                "remove them" + "".join(f"; {one}" for one in damaged[:1]))
        return Resumed(0, damaged)

    def save(self, step: int) -> None:
        """Copy the training's state; writing it goes on beside the training. Waits for the save before it.

        Raises:
            AgreedError: if the save before failed and this one fails too.
        """
        began = time.perf_counter()
        before = self._outcome()
        if before is not None and before.step == step and before.failure is None:
            return
        state = self._stager.stage(self._state())
        assert isinstance(state, dict)  # a future only where staging is asynchronous
        self._saving = Saving(self._folder, self._config, step, state, self._group, self.log)
        self._saving.start()
        if before is not None and before.failure is not None:
            self.wait()
        if self.log is not None:
            self.log.note(checkpoint_step=step, checkpoint_stall_seconds=time.perf_counter() - began)

    def save_now(self, step: int) -> None:
        """Save, unless that step is saved already, and wait until it is complete (the node is about to go).

        Raises:
            AgreedError: if it failed.
        """
        self.save(step)
        self.wait()

    def wait(self) -> None:
        """Wait until the last save is complete.

        Raises:
            AgreedError: if it failed.
        """
        saving = self._outcome()
        if saving is not None and saving.failure is not None:
            raise AgreedError(saving.failure)

    @property
    def is_saving(self) -> bool:
        """Whether a save goes on beside the training."""
        return self._saving is not None and self._saving.is_alive()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """At the end of a training, good or bad, its last save is waited for: it may still become complete.

        Not where this rank alone failed: the others may be dead, and the save waits for them.
        """
        if kind is None:
            self.wait()
        elif issubclass(kind, AgreedError) and self._saving is not None:
            self._saving.join()

    def _outcome(self) -> Saving | None:
        """The last save, ended."""
        saving = self._saving
        if saving is not None:
            saving.join()
            if saving.broken is not None:
                raise RuntimeError(f"checkpoint of step {saving.step} was not saved: {first_line(saving.broken)}"
                                   ) from saving.broken
        return saving

    def _state(self) -> dict[str, Any]:
        return {"model": get_model_state_dict(self._model),
                "optimizer": get_optimizer_state_dict(self._model, self._optimizer)}

    def _load(self, step: int) -> str | None:
        """Load a checkpoint; on every rank the same reason why it cannot be used, or None."""
        reader = None
        try:
            record, reason = self._group.from_rank_zero(lambda: _read(self._folder, step))
            if record is not None:
                reader, reason = self._open(record)
            if reader is not None and reason is None:
                state = self._state()
                state_dict_loader.load(state, storage_reader=reader, planner=PlainValuesPlanner(),
                                       process_group=self._group.group)
                set_model_state_dict(self._model, state["model"])
                set_optimizer_state_dict(self._model, self._optimizer, state["optimizer"])
        except CheckpointException as error:
            causes = [cause for cause, _ in error.failures.values()]
            reason = next((str(cause) for cause in causes if isinstance(cause, DamagedError)), None)
            if reason is None:
                why = first_line(causes[0])
                raise RuntimeError(f"checkpoint of step {step} cannot be loaded: {why}") from error
        finally:
            dist.barrier(group=self._group.group)  # all ranks of the node have read its copies
            if reader is not None:
                reader.forget()
        return reason

    def _open(self, record: Record) -> tuple[ShardReader | None, str | None]:
        reader, damage, failure = None, None, None
        try:
            reader = ShardReader(self._folder, record)
        except DamagedError as error:
            damage = str(error)
        except OSError as error:  # told to all: one rank alone would leave the others waiting
            failure = first_line(error)
        outcomes = self._group.gather((damage, failure))
        for rank, (_, why) in enumerate(outcomes):
            if why is not None:
                raise RuntimeError(f"rank {rank} cannot read the checkpoint of step {record.step}: {why}")
        return reader, next((why for why, _ in outcomes if why is not None), None)


def _read(folder: RunFolder, step: int) -> tuple[Record | None, str | None]:
    try:
        return checkpoint.read_record(folder, step), None
    except DamagedError as error:
        return None, str(error)
