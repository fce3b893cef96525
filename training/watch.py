"""The numbers of each step, read one step late; what happens when they are not finite."""

from __future__ import annotations

import math
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from training.config import TrainConfig
from training.data import step_sequences
from training.errors import AgreedError
from training.metrics import LaunchedStep, MetricsLog, StepMeter

_TRY = "try a lower training.optimizer.learning_rate or more training.optimizer.warmup_steps"


class StepWatch:
    """Reads a step once the next one is launched, so that the device need not wait for the host.

    Loss and gradient norm are the same on all ranks, so all come to the same end without asking each other.

    Args:
        config: of the training, without `auto`.
        world: ranks.
        meter: of this rank.
        log: on rank 0.
    """

    def __init__(self, config: TrainConfig, world: int, meter: StepMeter, log: MetricsLog | None) -> None:
        self._config, self._world, self._meter, self._log = config, world, meter, log
        self._bearable = min(config.max_skipped_steps, config.steps - 1)  # a run that learned nothing has failed
        self._unread: LaunchedStep | None = None
        self._skipped_in_a_row = 0

    def launched(self, step: int, loss: Tensor, grad_norm: Tensor, learning_rate: float,
                 data_seconds: float = 0.0) -> None:
        """A step has been handed to the device. Waits for the one before it.

        Raises:
            AgreedError: as `catch_up`, for the step before.
        """
        launched = self._meter.launched(step, loss, grad_norm, learning_rate, data_seconds)
        self.catch_up()
        self._unread = launched

    def catch_up(self) -> None:
        """Wait for the last step launched, and read it.

        Raises:
            AgreedError: if now more than `training.max_skipped_steps` in a row were skipped.
        """
        launched, self._unread = self._unread, None
        if launched is None:
            return
        record = self._meter.record(launched)
        skipped = record.get("skipped", False)
        if skipped:
            sequences = step_sequences(self._config, launched.step, self._world)
            record["sequences"] = [sequences.start, sequences.stop - 1]
        self._skipped_in_a_row = self._skipped_in_a_row + 1 if skipped else 0
        if self._log is not None:
            self._log.add(record)
        if self._skipped_in_a_row > self._bearable:
            if self._log is not None:
                self._log.flush()
            raise AgreedError(self._stop(record))

    def _stop(self, record: dict[str, Any]) -> str:
        first, last = record["sequences"]
        before = f", after {self._skipped_in_a_row - 1} skipped in a row" if self._skipped_in_a_row > 1 else ""
        return (f"step {record['step']}: {record['reason']}{before} (training.max_skipped_steps "
                f"{self._config.max_skipped_steps}); its batch was sequences {first} to {last} of training.data at "
                f"training.seed {self._config.seed}, and changed no weight; {_TRY}, or look at these sequences")


def check_finite(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Raises AgreedError if a weight or moment of any rank is not finite. Call on all ranks, before a checkpoint.

    A step that counts leaves none; a checkpoint that holds one would spoil every start from it.
    """
    tensors = [*model.parameters(), *(value for state in optimizer.state.values() for value in state.values()
                                      if isinstance(value, Tensor) and value.is_floating_point())]
    mine = [t.to_local() if isinstance(t, DTensor) else t.detach() for t in tensors]
    largest = nn.utils.get_total_norm([t for t in mine if t.numel()], norm_type=math.inf)
    broken = (~largest.isfinite()).float().to(mine[0].device)
    dist.all_reduce(broken)
    if broken.item():
        raise AgreedError(f"step {step}: weights or moments of the optimizer are not finite, so no checkpoint was "
                          f"written; {_TRY}")
