"""A node that is taken away with notice: save, then leave, and go on where there are nodes.

What happens (Ray 2.58): a pod that must go gets SIGTERM, and its `ray start --block` tells the cluster that the
node drains, for RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S seconds (_private/node.py); the training processes get no
signal. Ray Train hears of it and tells every worker (train/v2, preemption.py). All ranks then save after the same
step and return. The job starts its workers anew, where Ray places nothing on a node that drains; that costs none
of `training.max_failures`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.distributed as dist

_ASK_SECONDS = 2.0


class Notice:
    """Whether a node of this run is about to go. Make and use it on all ranks, on one thread.

    `ray.train.get_preemption_info` is a round trip to another process in which all ranks wait for each other, so it
    is asked every few seconds only, after a step that rank 0 chooses. The choice travels beside the next step, as
    one number over gloo: no step waits for it.

    Args:
        ask: on all ranks at once: None while no node is about to go.
        seconds: between two times to ask.
    """

    def __init__(self, ask: Callable[[], object | None], seconds: float = _ASK_SECONDS) -> None:
        self._ask, self._seconds = ask, seconds
        group = dist.new_group(backend="gloo")  # of its own: a pending number must not meet another message
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._asked = time.monotonic()
        self._sent: tuple[dist.Work, torch.Tensor] | None = None

    def came(self) -> bool:
        """Whether all ranks shall leave after this step; the same on every rank. Call once a step."""
        chosen = False
        if self._sent is not None:
            message, number = self._sent
            message.wait()
            chosen = bool(number.item())
        if chosen:
            self._asked = time.monotonic()
        due = torch.tensor([int(time.monotonic() - self._asked >= self._seconds)])
        message = dist.broadcast(due, src=0, group=self._group, async_op=True)
        assert message is not None
        self._sent = message, due
        return chosen and self._ask() is not None
