"""One save, on a thread of each rank: write, agree, try again, mark complete, delete what is old."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from training import checkpoint
from training.checkpoint import FileCheck, checkpoint_path
from training.checkpoint_files import ShardWriter
from training.errors import first_line
from training.gather import gathered
from training.metrics import MetricsLog
from training.sections import CheckpointConfig
from training.storage import RunFolder

Result = TypeVar("Result")

_SLOWEST_RANK = timedelta(hours=1)
_LONGEST_PAUSE_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class NoRoomError(OSError):
    """A checkpoint does not fit on its disk; the message has needed and free bytes."""


class SavingGroup:
    """A gloo group of all ranks, apart from those that train: their collectives would mix. Make it on all ranks."""

    def __init__(self) -> None:
        group = dist.new_group(backend="gloo", timeout=_SLOWEST_RANK)
        assert isinstance(group, dist.ProcessGroup)
        self.group = group

    def gather(self, mine: Any) -> list[Any]:
        """What each rank gave, by rank, on every rank."""
        return gathered(mine, self.group)

    def from_rank_zero(self, action: Callable[[], Result]) -> Result:
        """What `action()` returned on rank 0, on every rank; an OSError that it raised there is raised on all."""
        outcome: list[tuple[Any, OSError | None]] = [(None, None)]
        if dist.get_rank() == 0:
            try:
                outcome = [(action(), None)]
            except OSError as error:
                outcome = [(None, error)]
        dist.broadcast_object_list(outcome, src=0, group=self.group)
        result, error = outcome[0]
        if error is not None:
            raise error
        return result


class Saving(threading.Thread):
    """Writes a state that no one changes any more. Start it on all ranks.

    Args:
        folder: of the run.
        config: for how long to try, what to keep.
        step: of the checkpoint.
        state: model and optimizer in host memory.
        group: of the threads that save.
        log: of the run, on rank 0.
    """

    def __init__(self, folder: RunFolder, config: CheckpointConfig, step: int, state: dict[str, Any],
                 group: SavingGroup, log: MetricsLog | None) -> None:
        super().__init__(name=f"eagleray-checkpoint-{step}", daemon=True)
        self.step = step
        self.failure: str | None = None
        """Once ended: why there is no checkpoint, the same on all ranks; None: it is complete."""
        self.broken: BaseException | None = None
        """Once ended: what this rank alone knows, such as that another rank died."""
        self._folder, self._config, self._group, self._log = folder, config, group, log
        self._state: dict[str, Any] = state
        self._bytes = _bytes(state)

    def run(self) -> None:
        """Called by `start`."""
        try:
            self._run()
        except BaseException as error:
            self.broken = error
        self._state = {}

    def _run(self) -> None:
        began, attempts = time.monotonic(), 0
        while (reason := self._attempt(began)) is not None:
            attempts += 1
            pause = self._group.from_rank_zero(lambda why=reason, n=attempts: self._pause(why, n, began))
            if pause is None:
                self.failure = self._group.from_rank_zero(lambda why=reason: self._give_up(why))
                return
            time.sleep(pause)
        if dist.get_rank() == 0:
            self._note(checkpoint_written_step=self.step, checkpoint_seconds=time.monotonic() - began)
            try:
                checkpoint.remove_old(self._folder, self._config.keep, self._config.keep_every)
            except OSError as error:
                print(f"old checkpoints stay for now: {first_line(error)}", flush=True)

    def _attempt(self, began: float) -> OSError | None:
        """Write everything once; on every rank what storage said of it."""
        try:
            self._group.from_rank_zero(self._make_room)
            writer = ShardWriter(self._folder, self.step)
            state_dict_saver.save(self._state, storage_writer=writer, process_group=self._group.group)
            files = {name: check for one in self._group.gather(writer.written) for name, check in one.items()}
            self._group.from_rank_zero(lambda: self._complete(files, began))
        except OSError as error:
            return error
        except CheckpointException as error:
            causes = [(rank, cause) for rank, (cause, _) in sorted(error.failures.items())]
            for rank, cause in causes:
                if not isinstance(cause, OSError):
                    raise RuntimeError(f"rank {rank} cannot write its part: {first_line(cause)}") from cause
            return causes[0][1]  # pyright: ignore[reportReturnType]
        return None

    def _make_room(self) -> None:
        checkpoint.remove(self._folder, self.step)  # what an earlier attempt or a dead process left
        if not self._folder.is_local:
            return
        path = self._folder.path("checkpoints")
        self._folder.filesystem.create_dir(path, recursive=True)
        if shutil.disk_usage(path).free < self._bytes:
            raise NoRoomError(self._room())

    def _room(self) -> str:
        root = self._folder.path("checkpoints")
        return (f"{self._folder.path(checkpoint_path(self.step))} needs {self._bytes:,} bytes and "
                f"{shutil.disk_usage(root).free:,} are free there; make room, or lower training.checkpoint.keep")

    def _complete(self, files: dict[str, FileCheck], began: float) -> None:
        if self._log is not None:
            self._log.flush()  # else a start from this checkpoint would lack the steps before it
        checkpoint.complete(self._folder, self.step, files, world_size=dist.get_world_size(),
                            seconds=round(time.monotonic() - began, 3))

    def _pause(self, reason: OSError, attempts: int, began: float) -> float | None:
        """Seconds until the next attempt; None: there is none. A full disk does not become empty by waiting."""
        pause = min(2.0 ** (attempts - 1), _LONGEST_PAUSE_S)
        left = 60 * self._config.retry_minutes - (time.monotonic() - began) - pause
        self._note(checkpoint_failed_attempts=attempts)
        if isinstance(reason, NoRoomError) or reason.errno in _FULL or left <= 0:
            return None
        print(f"WARNING: checkpoint of step {self.step}: {first_line(reason)}; tried again in {pause:g} s, for "
              f"{left / 60:.1f} more minutes; the training goes on", flush=True)
        return pause

    def _give_up(self, reason: OSError) -> str:
        """Remove what was written; the reason for people."""
        newest: int | str | None = "unknown"
        try:
            checkpoint.remove(self._folder, self.step)
            newest = checkpoint.newest(self._folder)
        except OSError:
            pass  # storage still fails: a folder without its mark is no checkpoint
        why = first_line(reason)
        if not isinstance(reason, NoRoomError) and reason.errno in _FULL and self._folder.is_local:
            why = f"{why}: {self._room()}"
        have = "there is no earlier one" if newest is None else f"the newest one is of step {newest}"
        failure = f"checkpoint of step {self.step} was not saved: {why}; {have}"
        self._note(checkpoint_failure=failure)
        print(f"WARNING: {failure}", flush=True)
        return failure

    def _note(self, **values: Any) -> None:
        if self._log is not None:
            self._log.note(**values)


def _bytes(state: Any) -> int:
    """Of all tensors in a state, whole, whatever this rank has of them."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return sum(map(_bytes, values))
