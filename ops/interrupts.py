"""Ctrl-C, SIGTERM and a closed terminal end a command in one way: through its clean-up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ops.errors import StoppedError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Whether a signal has come, and whether one may still end the command."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._cleaning = False

    def check(self) -> None:
        """Raise StoppedError if a signal has come: Python drops an exception raised inside a destructor."""
        if self._received is not None and not self._cleaning:
            self.clean_up_undisturbed()
            raise StoppedError(self._received)

    def clean_up_undisturbed(self) -> None:
        """From here on signals are noted, and disturb nothing."""
        self._cleaning = True

    def listen_again(self) -> None:
        """After a clean-up that was not the end: a signal that came meanwhile ends the command now.

        Raises:
            KeyboardInterrupt: if one came.
        """
        self._cleaning = False
        if self._received is not None:
            raise KeyboardInterrupt

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._received is not None:
            return
        self._received = number
        if not self._cleaning:
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Signals raise once; a second one does not disturb the clean-up of the first. Main thread only.

    Raises:
        StoppedError: after the block's clean-up, if a signal ended it.
    """
    state = Interrupts()
    # What is ignored stays ignored: nohup, and jobs that a script starts with &.
    heard = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, state._handle) for number in heard}
    try:
        yield state
    except KeyboardInterrupt:
        raise StoppedError(state._received or signal.SIGINT) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
