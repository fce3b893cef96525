"""Many small waits at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

Result = TypeVar("Result")

_THREADS = 32


def side_by_side(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of `tasks` in their order, run in threads; the first error of a task is raised.

    The threads are daemons: a Ctrl-C ends the command at once, whatever call is still waiting.
    """
    waiting: queue.SimpleQueue[tuple[int, Callable[[], Result]]] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    for numbered in enumerate(tasks):
        waiting.put(numbered)
    for _ in range(min(_THREADS, len(tasks))):
        threading.Thread(target=_work, args=(waiting, done), daemon=True).start()
    results: dict[int, Result] = {}
    for _ in tasks:
        number, result, error = done.get()
        if error is not None:
            raise error
        results[number] = result  # pyright: ignore[reportArgumentType]
    return [results[number] for number in range(len(tasks))]


def _work(waiting: queue.SimpleQueue, done: queue.SimpleQueue) -> None:
    while True:
        try:
            number, task = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            done.put((number, task(), None))
        except BaseException as error:  # handed to the thread that waits for it
            done.put((number, None, error))
