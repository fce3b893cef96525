"""The folder of a run, on a local disk or on S3, and files that a node needs once.

    <storage>/<run>/metrics.jsonl
    <storage>/<run>/run.json
    <storage>/<run>/summary.json
    <storage>/<run>/checkpoints/step-00000020/
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyarrow import fs

from training.errors import JobError


class RunFolder:
    """Everything that a run leaves behind. Paths are relative to it, with slashes.

    Args:
        storage: folder or s3:// URI.
        name: of the run.

    Raises:
        JobError: if the URI is not one that can be opened.
    """

    def __init__(self, storage: str, name: str) -> None:
        self.uri = f"{absolute(storage)}/{name}"
        try:
            self.filesystem, self._root = fs.FileSystem.from_uri(self.uri)
        except (ValueError, OSError) as error:
            raise JobError(f"placement.storage {storage} cannot be opened: {error}") from error

    @property
    def is_local(self) -> bool:
        """Whether files lie on a disk, where lines can be appended."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def path(self, relative: str) -> str:
        """The path that `filesystem` understands."""
        return f"{self._root}/{relative}"

    def read_text(self, relative: str) -> str | None:
        """The file's text; None if it does not exist."""
        try:
            with self.filesystem.open_input_stream(self.path(relative)) as stream:
                return stream.read().decode()
        except FileNotFoundError:
            return None

    def read_json(self, relative: str) -> Any:
        """The file's contents; None if it does not exist."""
        text = self.read_text(relative)
        return None if text is None else json.loads(text)

    def write_text(self, relative: str, text: str) -> None:
        """Write a file whole: a reader sees the old one or the new one."""
        with self._whole(relative) as written, self.filesystem.open_output_stream(written) as stream:
            stream.write(text.encode())

    def put(self, file: Path, relative: str) -> None:
        """Copy a local file here, whole: a reader sees it only when it is complete."""
        with self._whole(relative) as written:
            fs.copy_files(str(file), written, fs.LocalFileSystem(), self.filesystem)

    @contextmanager
    def _whole(self, relative: str) -> Iterator[str]:
        """Where to write a file, so that it is there at once when the block ends, and not at all if it fails."""
        target = self.path(relative)
        self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        if not self.is_local:
            yield target  # S3 shows an object only when it is complete
            return
        written = f"{target}.{uuid.uuid4().hex}"  # a name of its own, for two may write the same file
        try:
            yield written
            self.filesystem.move(written, target)
        except BaseException:
            with suppress(OSError):
                self.filesystem.delete_file(written)
            raise

    def write_json(self, relative: str, value: Any) -> None:
        """Write a file whole, as indented JSON."""
        self.write_text(relative, json.dumps(value, indent=2) + "\n")

    def append_line(self, relative: str, line: str) -> None:
        """Add a line to a file on a local disk."""
        with open(self.path(relative), "a") as stream:
            stream.write(line + "\n")

    def folders(self, relative: str) -> list[str]:
        """Names of the folders inside a folder, sorted."""
        entries = self._entries(relative, recursive=False)
        return sorted(entry.base_name for entry in entries if entry.type == fs.FileType.Directory)

    def sizes(self, relative: str) -> dict[str, int]:
        """Bytes of each file below a folder, by its path inside."""
        start = self.path(relative) + "/"
        entries = self._entries(relative, recursive=True)
        return {e.path.removeprefix(start): e.size for e in entries if e.type == fs.FileType.File}

    def remove(self, relative: str) -> None:
        """Delete a file or folder, if it is there."""
        kind = self.filesystem.get_file_info(self.path(relative)).type
        if kind == fs.FileType.Directory:
            self.filesystem.delete_dir(self.path(relative))
        elif kind == fs.FileType.File:
            self.filesystem.delete_file(self.path(relative))

    def _entries(self, relative: str, recursive: bool) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.path(relative), allow_not_found=True, recursive=recursive)
        return self.filesystem.get_file_info(selector)


def absolute(storage: str) -> str:
    """`storage` without a trailing slash; a folder as an absolute path."""
    return storage.rstrip("/") if "://" in storage else str(Path(storage).absolute())


def once_per_node(name: str, make: Callable[[Path], None]) -> Path:
    """A file or folder that the first process of a node makes while the others wait.

    Args:
        name: the same for all processes that want the same thing.
        make: writes to the path it is given.
    """
    cache = Path(tempfile.gettempdir()) / f"eagleray-{os.getuid()}"
    cache.mkdir(mode=0o700, exist_ok=True)
    path = cache / name
    with open(cache / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            partial = cache / f"{name}.partial"
            if partial.is_dir():
                shutil.rmtree(partial)  # left by a process that died
            else:
                partial.unlink(missing_ok=True)
            make(partial)
            partial.rename(path)
    return path
