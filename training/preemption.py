"""A node that is taken away with notice, or comes: save, then leave, and go on where there are nodes.

What happens (Ray 2.58): a pod that must go gets SIGTERM, and its `ray start --block` tells the cluster that the
node drains, for RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S seconds (_private/node.py); the training processes get no
signal. Ray Train hears of it and tells every worker (train/v2, preemption.py). All ranks then save after the same
step and return. The job starts its workers anew, where Ray places nothing on a node that drains; that costs none
of `training.max_failures`.

A run that goes on with fewer nodes (gpu.min_nodes) leaves in the same way once there is room for more ranks. Ray
Train would end its workers in the middle of a step, and the steps since the last checkpoint would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_ASK_SECONDS = 2.0
_NO_QUESTION, _ASK, _ROOM = range(3)
"""What rank 0 tells the others."""


class Notice:
    """Whether a node of this run is about to go, or has come. Make and use it on all ranks, on one thread.

    `ray.train.get_preemption_info` is a round trip to another process in which all ranks wait for each other, so it
    is asked every few seconds only, after a step that rank 0 chooses. The choice travels beside the next step, as
    one number over gloo: no step waits for it.

    Args:
        ask: on all ranks at once: None while no node is about to go.
        room: on rank 0: whether the run could go on with more nodes.
        seconds: between two times to ask.
    """

    def __init__(self, ask: Callable[[], object | None], room: Callable[[], bool] = lambda: False,
                 seconds: float = _ASK_SECONDS) -> None:
        self._ask, self._room, self._seconds = ask, room, seconds
        group = dist.new_group(backend="gloo")  # of its own: a pending number must not meet another message
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._asked = time.monotonic()
        self._sent: tuple[dist.Work, torch.Tensor] | None = None

    def came(self) -> str | None:
        """Why all ranks shall leave after this step, if they shall; the same on every rank. Call once a step."""
        told = _NO_QUESTION
        if self._sent is not None:
            message, number = self._sent
            message.wait()
            told = int(number.item())
        if told != _NO_QUESTION:
            self._asked = time.monotonic()
        number = torch.tensor([self._question()])
        message = dist.broadcast(number, src=0, group=self._group, async_op=True)
        assert message is not None
        self._sent = message, number
        if told == _ROOM:
            return "there is room for more nodes"
        return "a node is about to go" if told == _ASK and self._ask() is not None else None

    def _question(self) -> int:
        if time.monotonic() - self._asked < self._seconds:
            return _NO_QUESTION
        return _ROOM if dist.get_rank() == 0 and self._room() else _ASK
