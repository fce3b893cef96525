"""A results folder that is whole or not there: written beside its place, then swapped in."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.errors import NothingToDoError

RECORD = "rehearsal.json"
"""What `eagleray rehearse` changed and measured; also the mark of a folder that it may overwrite."""


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """An empty folder beside `out`; it takes the place of `out` when the block ends well, else it vanishes.

    Raises:
        NothingToDoError: if `out` is something else than earlier results, cannot be written, or another
            rehearsal is at work on it.
    """
    out = out.absolute()
    _refuse_foreign(out)
    with held(out):
        _remove_leftovers(out)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.new-", dir=out.parent))
        staging.chmod(0o755)
        try:
            yield staging
            _swap(staging, out)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def held(out: Path) -> Iterator[None]:
    """`out` is ours until the block ends; the kernel drops the lock when the process dies, however it dies.

    Raises:
        NothingToDoError: if the place cannot be written, or another command is at work on it.
    """
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(out.parent / f".{out.name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise NothingToDoError(f"--out {out}: cannot be written ({error.strerror}); choose another") from None
    try:
        _hold(lock, out)
        yield
    finally:
        os.close(lock)


def _refuse_foreign(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / RECORD).is_file():
        raise NothingToDoError(f"--out {out}: holds something else than a rehearsal's results; choose another")
    if out.exists() and not out.is_dir():
        raise NothingToDoError(f"--out {out}: is a file; choose a folder")


def _hold(lock: int, out: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        other = os.pread(lock, 32, 0).decode().strip() or "unknown"
        raise NothingToDoError(f"--out {out}: another command (process {other}) is writing there; "
                               "wait for it, or choose another folder with --out") from None
    os.truncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)


def _remove_leftovers(out: Path) -> None:
    """What a rehearsal left that was killed outright; we hold the lock, so nobody uses it."""
    for path in [*out.parent.glob(f".{out.name}.new-*"), out.parent / f".{out.name}.old"]:
        shutil.rmtree(path, ignore_errors=True)


def _swap(staging: Path, out: Path) -> None:
    old = out.parent / f".{out.name}.old"
    if out.exists():
        out.rename(old)
    staging.rename(out)
    shutil.rmtree(old, ignore_errors=True)
