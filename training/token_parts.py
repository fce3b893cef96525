"""Token files in parts, each written by a task of its own, and joined on a node that maps them into memory.

    <storage>/tokens-<digest>/part-00000/    token files (token_files.py) of one part; index.json last
    <storage>/tokens-<digest>/index.json     counts of the whole and of its parts, once all parts are there
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from pyarrow import fs

from training.errors import JobError
from training.storage import RunFolder, absolute

COUNTS = ("tokens", "documents", "counted", "highest", "highest_at")
"""Of a part's index.json, what the whole is made of."""
_STREAMS = 8
"""Parts that a node copies at once: a single stream from S3 does not fill its network."""
_BLOCK = 8 << 20
_FOLDER = re.compile("tokens-[0-9a-f]{12}")
_REST_SECONDS = 86400
"""For how long nothing was written to tokens that are deleted."""


def part_name(number: int) -> str:
    """Folder of part `number`, inside the folder of all."""
    return f"part-{number:05d}"


def keep_part(folder: RunFolder, number: int, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The counts of a part, which is made only where it is not there whole.

    Two writers do no harm: they write the same, and each file appears whole.

    Args:
        folder: of all parts.
        make: writes token files into the folder it is given, and returns the contents of their index.json.
    """
    name = part_name(number)
    index = folder.read_json(f"{name}/index.json")
    if index is None:
        with tempfile.TemporaryDirectory(prefix="eagleray-part-") as scratch:
            index = make(Path(scratch))
            for file in sorted(Path(scratch).iterdir(), key=lambda file: file.name == "index.json"):
                folder.put(file, f"{name}/{file.name}")
    return {count: index[count] for count in COUNTS}


def whole(parts: list[dict[str, Any]], origin: dict[str, Any]) -> dict[str, Any]:
    """The index.json of all parts, from the counts of each, in order."""
    highest = max(parts, key=lambda part: part["highest"])  # the first of several, as in one pass over the rows
    sums = {count: sum(part[count] for part in parts) for count in ("tokens", "documents", "counted")}
    return {"version": 1, **sums, "highest": highest["highest"], "highest_at": highest["highest_at"],
            "origin": origin, "parts": [{count: part[count] for count in sums} for part in parts]}


def join(folder: RunFolder, target: Path) -> None:
    """Copy the parts of `folder` into the missing folder `target`, as token files of one piece.

    Raises:
        JobError: if a part is gone, or of another size than its counts say.
        OSError: if storage fails.
    """
    index = folder.read_json("index.json")
    if index is None:
        raise JobError(f"{folder.uri} holds no tokens any more (index.json); start the job again")
    parts = index.pop("parts")
    target.mkdir()
    some_uncounted = index["counted"] < index["tokens"]
    sizes = {"tokens.bin": 4 * index["tokens"], "starts.bin": 8 * index["documents"]}
    if some_uncounted:
        sizes["counted.bin"] = index["tokens"]
    for name, size in sizes.items():
        with open(target / name, "wb") as stream:
            stream.truncate(size)
    before = {count: np.cumsum([0, *(part[count] for part in parts)]).tolist() for count in ("tokens", "documents")}

    def copy(number: int) -> None:
        part, tokens, name = parts[number], before["tokens"][number], part_name(number)
        _copy(_blocks(folder, f"{name}/tokens.bin", 4 * part["tokens"]), target / "tokens.bin", 4 * tokens)
        starts = (np.frombuffer(block, np.int64) + tokens
                  for block in _blocks(folder, f"{name}/starts.bin", 8 * part["documents"]))
        _copy((block.tobytes() for block in starts), target / "starts.bin", 8 * before["documents"][number])
        if part["counted"] < part["tokens"]:
            _copy(_blocks(folder, f"{name}/counted.bin", part["tokens"]), target / "counted.bin", tokens)
        elif some_uncounted:
            _copy(_ones(part["tokens"]), target / "counted.bin", tokens)

    with ThreadPoolExecutor(_STREAMS) as pool:
        list(pool.map(copy, range(len(parts))))
    (target / "index.json").write_text(json.dumps(index, indent=2) + "\n")


def remove_unused(storage: str, reference: str) -> list[str]:
    """Delete the folders of tokens in `storage` that no run there names, and that have lain still for a day.

    Args:
        storage: folder or URI, of runs and tokens.
        reference: the file in a run's folder that names its tokens.

    Returns:
        Names of the deleted folders.

    Raises:
        OSError: if storage fails.
        ValueError: if such a file is no JSON: what it named is not known, and nothing is deleted.
    """
    filesystem, root = fs.FileSystem.from_uri(absolute(storage))
    folders = [entry.base_name for entry in filesystem.get_file_info(fs.FileSelector(root))
               if entry.type == fs.FileType.Directory]
    made = [name for name in folders if _FOLDER.fullmatch(name) and _rests(filesystem, f"{root}/{name}")]
    if not made:
        return []
    named = (RunFolder(storage, name).read_json(reference) for name in folders if not _FOLDER.fullmatch(name))
    used = {found.get("folder") for found in named if isinstance(found, dict)}
    unused = [name for name in made if name not in used]
    for name in unused:
        filesystem.delete_dir(f"{root}/{name}")
    return unused


def _rests(filesystem: fs.FileSystem, path: str) -> bool:
    files = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    return time.time() - max((file.mtime_ns or 0 for file in files), default=0) / 1e9 > _REST_SECONDS


def _copy(blocks: Iterator[bytes], target: Path, offset: int) -> None:
    with open(target, "r+b") as stream:
        stream.seek(offset)
        for block in blocks:
            stream.write(block)


def _ones(count: int) -> Iterator[bytes]:
    for start in range(0, count, _BLOCK):
        yield b"\1" * min(_BLOCK, count - start)


def _blocks(folder: RunFolder, relative: str, size: int) -> Iterator[bytes]:
    """A file of storage in whole blocks."""
    path = folder.path(relative)
    found = folder.filesystem.get_file_info(path).size or 0  # None where it is gone
    if found != size:
        raise JobError(f"{folder.uri}/{relative} has {found} bytes where its index says {size}; delete "
                       f"{folder.uri} and start the job again: the data is tokenised anew")
    with folder.filesystem.open_input_file(path) as stream:
        for start in range(0, size, _BLOCK):
            yield stream.read_at(min(_BLOCK, size - start), start)
