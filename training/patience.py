"""An end to the wait for nodes: Ray Train 2.58 waits for the fewest workers of an elastic run for ever.

Imported for elastic runs only: the hook is Ray Train's own, and may be elsewhere in another version. It passes such
callbacks through for uses like this (data_parallel_trainer.py); its public ones are not called while it waits.
"""

from __future__ import annotations

import time

from ray.train.v2._internal.execution.callback import ControllerCallback
from ray.train.v2._internal.execution.controller.state import (
    InitializingState,
    ReschedulingState,
    RestartingState,
    TrainControllerState,
)

_WAITING = (InitializingState, RestartingState, ReschedulingState)
_LOOK_S = 0.5


class Patience(ControllerCallback):
    """Ends a run whose workers cannot start for lack of nodes.

    Args:
        seconds: to wait, each time that workers are to start.
        reason: of the end.
    """

    def __init__(self, seconds: float, reason: str) -> None:
        self._seconds, self._reason = seconds, reason
        self._since: float | None = None

    def after_controller_state_update(self, previous_state: TrainControllerState,
                                      current_state: TrainControllerState) -> None:
        """Called each time round the controller's loop.

        Raises:
            TimeoutError: after the seconds; it ends the run.
        """
        if not isinstance(current_state, _WAITING):
            self._since = None
            return
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > self._seconds:
            raise TimeoutError(self._reason)
        if isinstance(previous_state, _WAITING):
            time.sleep(_LOOK_S)  # the loop itself does not pause here, and would keep a core of the head busy
