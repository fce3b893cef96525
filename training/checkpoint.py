"""What a checkpoint is in a run's storage: its files, the mark that it is complete, and which ones stay.

    checkpoints/step-00000020/__0_0.distcp     the shards that rank 0 wrote
    checkpoints/step-00000020/.metadata        which part of which tensor lies where
    checkpoints/step-00000020/complete.json    written last: size and checksum of every file

A folder without complete.json is no checkpoint: its writer died or failed. Ray's own record of checkpoints is
not used: a report made just before a crash can be lost though the files are there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from training.errors import JobError
from training.storage import RunFolder

MARK = "complete.json"
DAMAGED = "damaged.json"
"""What `set_aside` makes of complete.json."""


class DamagedError(JobError):
    """A file of a checkpoint is not what was written; the message names it."""


class FileCheck(NamedTuple):
    """What a file must be."""

    size: int
    """Bytes."""
    crc32: str
    """Of all its bytes, 8 hex digits."""


@dataclass(frozen=True)
class Record:
    """The contents of complete.json."""

    step: int
    """Optimizer steps done."""
    files: dict[str, FileCheck]
    """By path inside the checkpoint."""


def checkpoint_path(step: int) -> str:
    """`checkpoints/step-00000020`, relative to the run's folder."""
    return f"checkpoints/step-{step:08d}"


def newest(folder: RunFolder) -> int | None:
    """The step of the newest complete checkpoint in storage; None if there is none."""
    return max(complete_steps(folder), default=None)


def complete_steps(folder: RunFolder) -> list[int]:
    """Steps of the checkpoints that have their mark and every file in its size, oldest first."""
    return [step for step in _steps(folder) if _is_whole(folder, step)]


def marked_steps(folder: RunFolder) -> list[int]:
    """Steps of the checkpoints that were once complete, damaged since or not, oldest first."""
    return _steps_with(folder, MARK)


def set_aside_steps(folder: RunFolder) -> list[int]:
    """Steps of the checkpoints that `set_aside` found damaged, oldest first."""
    return _steps_with(folder, DAMAGED)


def read_record(folder: RunFolder, step: int) -> Record:
    """The contents of a checkpoint's complete.json.

    Raises:
        DamagedError: if it is missing or cannot be read, or a file lacks or has another size than it says.
    """
    path = checkpoint_path(step)
    text = folder.read_text(f"{path}/{MARK}")
    try:
        mark = json.loads(text or "")
        files = {name: FileCheck(int(one["bytes"]), str(one["crc32"])) for name, one in mark["files"].items()}
        record = Record(int(mark["step"]), files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path}/{MARK} cannot be read ({type(error).__name__})") from error
    sizes = folder.sizes(path)
    for name, check in files.items():
        if name not in sizes:
            raise DamagedError(f"{path}/{name} is missing")
        if sizes[name] != check.size:
            raise DamagedError(f"{path}/{name} has {sizes[name]} bytes; {check.size} were written")
    return record


def complete(folder: RunFolder, step: int, files: dict[str, FileCheck], **facts: Any) -> None:
    """Write complete.json. `facts` are for people.

    Raises:
        OSError: if storage does not have all files in their sizes.
    """
    path, sizes = checkpoint_path(step), folder.sizes(checkpoint_path(step))
    lacking = [name for name, check in files.items() if sizes.get(name) != check.size]
    if lacking:
        raise OSError(f"{folder.uri}/{path} lacks {len(lacking)} of {len(files)} files as rank 0 sees it, first "
                      f"{lacking[0]}: placement.storage must be one folder that all nodes share, or s3://")
    listed = {name: {"bytes": check.size, "crc32": check.crc32} for name, check in sorted(files.items())}
    folder.write_json(f"{path}/{MARK}", {"step": step, **facts, "files": listed})


def set_aside(folder: RunFolder, step: int, reason: str) -> None:
    """A checkpoint counts no longer: its complete.json becomes damaged.json, with the reason. Its files stay."""
    path = checkpoint_path(step)
    folder.write_json(f"{path}/{DAMAGED}", {"step": step, "reason": reason,
                                            MARK: folder.read_text(f"{path}/{MARK}")})
    folder.remove(f"{path}/{MARK}")


def remove(folder: RunFolder, step: int) -> None:
    """Delete a checkpoint or what there is of it, its mark first: what is half deleted is no checkpoint."""
    folder.remove(f"{checkpoint_path(step)}/{MARK}")
    folder.remove(checkpoint_path(step))


def remove_old(folder: RunFolder, keep: int, keep_every: int) -> None:
    """Delete what is older than the `keep` newest checkpoints, but for steps that `keep_every` divides."""
    complete_ones = complete_steps(folder)
    kept = set(complete_ones[-keep:])
    oldest_kept = min(kept, default=0)
    kept |= {step for step in complete_ones if keep_every and step % keep_every == 0}
    for step in _steps(folder):
        if step not in kept and step < oldest_kept:
            remove(folder, step)


def _steps(folder: RunFolder) -> list[int]:
    names = (name.removeprefix("step-") for name in folder.folders("checkpoints") if name.startswith("step-"))
    return sorted(int(name) for name in names if name.isdecimal())


def _steps_with(folder: RunFolder, name: str) -> list[int]:
    return [step for step in _steps(folder) if folder.read_text(f"{checkpoint_path(step)}/{name}") is not None]


def _is_whole(folder: RunFolder, step: int) -> bool:
    """As far as sizes tell."""
    try:
        read_record(folder, step)
    except DamagedError:
        return False
    return True
