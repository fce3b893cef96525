"""Failures that a retry cannot cure, agreed on by all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from training.gather import gathered

Result = TypeVar("Result")


class JobError(ValueError):
    """The job cannot run as it is written; the message is one line that a user can act on."""


class AgreedError(JobError):
    """A JobError that every rank raises at the same point, so that no rank is left waiting in a collective."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type's name where it has none."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def together(action: Callable[[], Result], group: dist.ProcessGroup | None = None) -> Result:
    """`action()` on every rank; where it raises JobError on one rank, all ranks fail with that reason.

    Must be called by all ranks. `group`: of all ranks, through which they agree; None: the default one.

    Raises:
        AgreedError: the reason of the lowest rank that failed.
    """
    result, failure = None, None
    try:
        result = action()
    except JobError as error:
        failure = str(error)
    reason = next((text for text in gathered(failure, group) if text), None)
    if reason is not None:
        raise AgreedError(reason)
    return result  # pyright: ignore[reportReturnType]
