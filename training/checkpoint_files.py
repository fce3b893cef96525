"""The files of a checkpoint: written with a checksum, and read only after it was found right.

A checkpoint may come from a bucket that others can write to. So nothing of it is unpickled but the few classes
that torch.distributed.checkpoint itself writes, and plain values.
"""

from __future__ import annotations

import io
import os
import pickle
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

from training.checkpoint import DamagedError, FileCheck, Record, checkpoint_path
from training.errors import first_line
from training.storage import RunFolder, once_per_node

_CHUNK = 8 << 20


class ShardWriter(FileSystemWriter):
    """Writes straight into the run's storage; for torch.distributed.checkpoint's `save`.

    Args:
        folder: of the run.
        step: of the checkpoint.
    """

    def __init__(self, folder: RunFolder, step: int) -> None:
        path = folder.path(checkpoint_path(step))
        # The tensors lie in host memory already. Asked to copy ahead, the writer would use the GPU.
        super().__init__(path, sync_files=folder.is_local, per_thread_copy_ahead=0)
        self.fs = _CheckedFiles(folder)

    @property
    def written(self) -> dict[str, FileCheck]:
        """The files that this rank has written, by name."""
        return self.fs.written


class ShardReader(FileSystemReader):
    """Reads a checkpoint for torch.distributed.checkpoint's `load`, each file after a look at its checksum.

    A file in remote storage is brought to this node once, and only if one of its ranks needs it.

    Args:
        folder: of the run.
        record: of the checkpoint.

    Raises:
        DamagedError: here or when it reads, if a file is not the one that was written.
    """

    def __init__(self, folder: RunFolder, record: Record) -> None:
        super().__init__(folder.path(checkpoint_path(record.step)))
        self.fs = _VerifiedFiles(folder, record)
        with self.fs.create_stream(".metadata", "rb") as stream:
            self._metadata = read_metadata(cast(BinaryIO, stream), f"{checkpoint_path(record.step)}/.metadata")

    def read_metadata(self, *_arguments: Any, **_named: Any) -> Metadata:
        """What the checkpoint holds."""
        return self._metadata

    def forget(self) -> None:
        """Delete this node's copies of remote files. Call when all its ranks have read."""
        self.fs.forget()


class PlainValuesPlanner(DefaultLoadPlanner):
    """Loads tensors and plain values; refuses any value whose pickle holds more."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Called by torch.distributed.checkpoint for each value that is no tensor."""
        try:
            torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise DamagedError(f"value {read_item.storage_index.fqn} of the checkpoint is refused: it is not plain "
                               f"({first_line(error)})") from error
        value.seek(0)  # the base class unpickles with all classes, and now that can do no harm
        super().load_bytes(read_item, value)


def read_metadata(stream: BinaryIO, path: str) -> Metadata:
    """The contents of a `.metadata` file. `path`: of it, for the message.

    Raises:
        DamagedError: if it is no such file, or its pickle asks for anything but the classes that belong there.
    """
    try:
        found = _MetadataUnpickler(stream).load()
    except Exception as error:  # a damaged pickle raises nearly anything
        raise DamagedError(f"{path} is refused: {first_line(error)}") from error
    if not isinstance(found, Metadata):
        raise DamagedError(f"{path} is refused: it holds a {type(found).__name__}, not a checkpoint's metadata")
    found.storage_meta = StorageMeta()
    return found


class _MetadataUnpickler(pickle.Unpickler):
    # What a pickle asks for by name it can also call; none of these does more than hold values.
    _ALLOWED = {
        *((metadata.__name__, name) for name in (
            "Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "ChunkStorageMetadata",
            "BytesStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING")),
        (filesystem.__name__, "_StorageInfo"), ("torch.serialization", "_get_layout"), ("torch", "Size"),
        ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"), ("collections", "OrderedDict"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        module = module.removesuffix("._local")  # Python 3.13 pickles a path by the name pathlib._local
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or (module, name) in self._ALLOWED:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no checkpoint needs")


def _member(kind: Any, name: str) -> Enum:
    """All that a checkpoint may use getattr for: Python 3.11.0 to 3.11.3 pickle a member of an enum by it."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError("it asks for an attribute, which no checkpoint needs")
    return kind[name]


class _CheckedFiles(FileSystem):
    """Files of the run's storage, as torch.distributed.checkpoint writes them; keeps the checksum of each."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.written: dict[str, FileCheck] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        with self._open(str(path), mode) as raw, _Checked(raw) as stream:
            yield stream
        self.written[Path(path).name] = FileCheck(stream.size, f"{stream.crc32:08x}")

    def _open(self, path: str, mode: str) -> BinaryIO:
        if self._folder.is_local:
            return cast(BinaryIO, Path(path).open(mode))  # has a file number to sync by
        return cast(BinaryIO, self._folder.filesystem.open_output_stream(path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        self._folder.filesystem.create_dir(str(path), recursive=True)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        return self._folder.filesystem.get_file_info(str(path)).is_file

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._folder.filesystem.delete_file(str(path))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._folder.filesystem.move(str(path), str(new_path))
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Checked(io.RawIOBase):
    """A stream that counts and sums up what is written through it."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.size, self.crc32 = 0, 0

    def write(self, data: Any, /) -> int:
        self._raw.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        written = memoryview(data).nbytes
        self.size += written
        return written

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        if not self._raw.closed:
            self._raw.flush()

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()
        super().close()


class _VerifiedFiles(FileSystem):
    """The files of one checkpoint, opened only when size and checksum are those of its record."""

    def __init__(self, folder: RunFolder, record: Record) -> None:
        self._folder, self._record = folder, record
        self._verified: dict[str, Path] = {}

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Generator[io.IOBase]:
        with open(self._on_this_node(Path(path).name), mode) as stream:
            yield cast(io.IOBase, stream)

    def forget(self) -> None:
        if not self._folder.is_local:
            for path in self._verified.values():
                path.unlink(missing_ok=True)
        self._verified = {}

    def _on_this_node(self, name: str) -> Path:
        if name not in self._verified:
            relative = f"{checkpoint_path(self._record.step)}/{name}"
            check = self._record.files.get(name)
            if check is None:
                raise DamagedError(f"{relative} is not among the files of the checkpoint")
            self._verified[name] = self._verify(relative, check)
        return self._verified[name]

    def _verify(self, relative: str, check: FileCheck) -> Path:
        if self._folder.is_local:
            path = Path(self._folder.path(relative))
            with path.open("rb") as source:
                _copy_checked(source, lambda _: None, relative, check)
            return path

        def download(target: Path) -> None:
            with self._folder.filesystem.open_input_stream(self._folder.path(relative)) as source, \
                    target.open("wb") as copy:
                _copy_checked(source, copy.write, relative, check)

        # The checksum belongs to the name: a copy that a dead process left may be of an earlier checkpoint.
        name = f"{self._folder.uri}/{relative}-{check.crc32}".replace("/", "_").replace(":", "")
        return once_per_node(name, download)


def _copy_checked(source: Any, write: Callable[[bytes], Any], relative: str, check: FileCheck) -> None:
    size, crc = 0, 0
    while chunk := source.read(_CHUNK):
        size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        write(chunk)
    if size != check.size or f"{crc:08x}" != check.crc32:
        raise DamagedError(f"{relative} is damaged: checksum {crc:08x} over {size} bytes, but {check.crc32} over "
                           f"{check.size} was written")
