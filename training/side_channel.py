"""A second way between the ranks, over TCP: it still works when the network that trains does not.

What must be agreed before NCCL is proven (or after it failed) goes this way. Every wait here has an end,
and says which ranks it waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from training.gather import gathered

Result = TypeVar("Result")

_GATHER_TIMEOUT_S = 600
_HANGS = "hangs"
_names: dict[str, int] = {}


class MissingRanksError(RuntimeError):
    """Ranks did not come to where the others wait. Starting the workers again may help."""


class AttemptError(RuntimeError):
    """What the ranks tried together failed or hung on some of them. Raised on all, with the same words."""


class SideChannel:
    """A gloo group of all ranks. Make and use it on all ranks, on one thread.

    Args:
        seconds: that ranks may take to come here.
        node: name or address of this rank's node.

    Raises:
        MissingRanksError: if some ranks did not come.
    """

    def __init__(self, seconds: float, node: str) -> None:
        arrive("the start of the job", seconds)
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=_GATHER_TIMEOUT_S))
        assert isinstance(group, dist.ProcessGroup)
        self.group = group
        self.nodes: list[str] = self.gather(node)
        """Each rank's node, by rank."""

    def gather(self, mine: Any) -> list[Any]:
        """What each rank gave, by rank, on every rank. `mine` is pickled."""
        return gathered(mine, self.group)

    def attempt(self, what: str, seconds: float, device: torch.device,
                action: Callable[[], Result]) -> list[Result]:
        """`action()` on each rank; what each returned, by rank, on every rank.

        Args:
            what: it is, for people.
            seconds: that it may take.
            device: of this rank.
            action: may use any other group than this one.

        Raises:
            AttemptError: where it raised RuntimeError on a rank, or was not done in time; names the ranks.
        """
        mine: tuple[Result | None, str | None] = (None, None)
        try:
            mine = (within(seconds, action, device), None)
        except TimeoutError:
            mine = (None, _HANGS)
        except RuntimeError as error:
            mine = (None, " ".join(str(error).split())[:300] or type(error).__name__)
        outcomes = self.gather(mine)
        if any(text is not None for _, text in outcomes):
            raise AttemptError(self._failure(what, seconds, [text for _, text in outcomes]))
        return [result for result, _ in outcomes]

    def _failure(self, what: str, seconds: float, texts: Sequence[str | None]) -> str:
        broken = [rank for rank, text in enumerate(texts) if text not in (None, _HANGS)]
        if broken:
            first = broken[0]
            return f"{what} failed on {ranks_text(broken)}: rank {first} ({self.nodes[first]}): {texts[first]}"
        hang = [rank for rank, text in enumerate(texts) if text == _HANGS]
        ended = [rank for rank, text in enumerate(texts) if text is None]
        others = f"; it ended on {ranks_text(ended)}" if ended else ""
        return f"{what} did not end within {seconds:g} s on {ranks_text(hang)}, although all ranks came{others}"


def arrive(where: str, seconds: float) -> None:
    """Wait until all ranks are here.

    Uses the store through which the ranks found each other: it needs no connection between them.

    Raises:
        MissingRanksError: on each rank that waited `seconds`; names the ranks that are not here.
    """
    # The default group's own store: torch shows it nowhere else.
    store, world = _get_default_store(), dist.get_world_size()
    _names[where] = _names.get(where, 0) + 1
    key = f"eagleray/{where}/{_names[where]}"
    store.set(f"{key}/{dist.get_rank()}", "here")
    if store.add(f"{key}/count", 1) == world:
        store.set(f"{key}/all", "here")
    try:
        store.wait([f"{key}/all"], timedelta(seconds=seconds))
    except dist.DistStoreError:
        missing = [rank for rank in range(world) if not store.check([f"{key}/{rank}"])]
        raise MissingRanksError(f"{ranks_text(missing)} did not come to {where} within {seconds:g} s, and "
                                f"{world - len(missing)} of {world} ranks wait; look at what they do, and at "
                                "their nodes") from None


def within(seconds: float, action: Callable[[], Result], device: torch.device) -> Result:
    """`action()`, on a thread that is left behind if it takes longer: a hanging collective cannot be stopped.

    Raises:
        TimeoutError: if it takes longer.
    """
    outcome: list[tuple[Result | None, BaseException | None]] = []

    def run() -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)  # threads start with device 0
        try:
            outcome.append((action(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"not done after {seconds:g} s")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # pyright: ignore[reportReturnType]


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1, 2`, `ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8 more`."""
    listed = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) != 1)} {listed}{more}"
