"""The jobs of one Ray cluster train one after the other, in the order in which they came.

Every job wants all GPUs. Ray gives them to a placement group at once or not at all, so no two jobs ever wait for
each other with half of them each. But each start of a job's workers is a placement group of its own: a job that
only starts its workers again, after a failure, would lose its GPUs to one that waits; and of two elastic ones each
would take the nodes that the other lost.

All drivers of a cluster are processes of its head (their job asks for no CPU). So a turn is a numbered file of that
machine with a lock, which the kernel drops with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import JobError

_LOOK_S = 1.0


@contextmanager
def turn(cluster: str, name: str, wait_seconds: float, say: Callable[[str], None] = print) -> Iterator[None]:
    """Wait until all jobs are done that came before, and have the cluster until the block ends.

    Args:
        cluster: address of the Ray cluster.
        name: of this job, for the people of another.
        wait_seconds: 0: without end.
        say: gets one line whenever another job is ahead.

    Raises:
        JobError: if its turn has not come in time; says whose it is.
    """
    line = Path(tempfile.gettempdir()) / f"eagleray-{os.getuid()}" / _folder(cluster)
    try:
        line.mkdir(mode=0o700, parents=True, exist_ok=True)
        ticket, number = _take_ticket(line, name)
    except OSError as error:
        raise JobError(f"{line}: {error.strerror}; jobs line up there") from error
    try:
        _await(line, number, wait_seconds, say)
        yield
    finally:
        (line / str(number)).unlink(missing_ok=True)
        os.close(ticket)


def _take_ticket(line: Path, name: str) -> tuple[int, int]:
    """The file, open and locked, with a number above all others: one job at a time takes one."""
    with (line / "lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        number = max(_numbers(line), default=0) + 1
        ticket = os.open(line / str(number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(ticket, fcntl.LOCK_EX)
        os.write(ticket, name.encode())
        return ticket, number


def _await(line: Path, number: int, wait_seconds: float, say: Callable[[str], None]) -> None:
    began, said = time.monotonic(), None
    while ahead := _ahead(line, number):
        if ahead != said:
            said = ahead
            say(f"{ahead[0]} has the GPUs; waiting behind {', '.join(ahead)}")
        if wait_seconds and time.monotonic() - began >= wait_seconds:
            raise JobError(f"its turn did not come within {wait_seconds:g} s: {ahead[0]} has the GPUs; wait longer "
                           "(eagleray run --queue HOURS), or end that job first")
        time.sleep(_LOOK_S)


def _ahead(line: Path, number: int) -> list[str]:
    """The jobs that came before and are not done, in their order."""
    holders = [_holder(line / str(other)) for other in sorted(_numbers(line)) if other < number]
    return [name for name in holders if name is not None]


def _holder(path: Path) -> str | None:
    """The job of a ticket; None where its process is no more, and then the ticket goes."""
    try:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read()
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    return None


def _numbers(line: Path) -> list[int]:
    return [int(path.name) for path in line.iterdir() if path.name.isdigit()]


def _folder(cluster: str) -> str:
    return f"turns-{hashlib.sha256(cluster.encode()).hexdigest()[:12]}"
