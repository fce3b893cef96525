"""An end to a run from within: what waited for its turn may take as long, and cost as much, as what did not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def time_limit(seconds: float, end: Callable[[str], None]) -> Iterator[None]:
    """Call `end` with the reason, on a thread, if the block takes longer; 0: it may take for ever."""
    if not seconds:
        yield
        return
    reason = (f"ended after {seconds / 3600:.1f} hours: those of ray.run_hours, or all that ray.max_dollars pays "
              "for")
    timer = threading.Timer(seconds, end, [reason])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
