"""Documents of files on a disk, on S3 or of a Hub dataset, one after the other: never a whole file in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
from huggingface_hub import snapshot_download
from pyarrow import fs, parquet

from training.config import DataConfig
from training.errors import JobError, first_line
from training.model_folder import hub_failure
from training.storage import once_per_node

_PIECE = 1 << 20
"""Characters of a text file at once, cut at a line's end: bounds the tokenizer's memory."""
_ENDINGS = {"text": (".txt",), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",),
            "hub": (".parquet", ".jsonl", ".jsonl.gz")}


@dataclass(frozen=True)
class Document:
    """A document, or a piece of one: `ends` is set on the last piece."""

    where: str
    """`/data/a.jsonl row 3`, as an error names it."""
    value: Any
    """Text, a list of messages, or (prompt, completion)."""
    ends: bool = True


@dataclass(frozen=True)
class Files:
    """The files of `training.data.path`, in name order."""

    filesystem: fs.FileSystem
    files: list[fs.FileInfo]

    @property
    def state(self) -> list[tuple[str, int, int | None]]:
        """What changes when a file changes."""
        return [(file.path, file.size, file.mtime_ns) for file in self.files]


def find_files(data: DataConfig) -> Files:
    """The files that `data` names; a Hub dataset is downloaded once on each node.

    Raises:
        JobError: if there are none, or only empty ones.
    """
    path = _hub_folder(data) if data.kind == "hub" else data.path or ""
    filesystem, root = _open(path)
    try:
        info = filesystem.get_file_info(root)
        if info.type == fs.FileType.NotFound:
            raise JobError(f"training.data.path {path} does not exist on this node")
        files = [info]
        if info.type == fs.FileType.Directory:
            inside = filesystem.get_file_info(fs.FileSelector(root, recursive=data.kind != "text"))
            wanted = (f for f in inside if f.type == fs.FileType.File and f.path.endswith(_ENDINGS[data.kind]))
            files = sorted(wanted, key=lambda file: file.path)
    except OSError as error:
        raise JobError(f"training.data.path {path} cannot be read: {first_line(error)}") from error
    if data.kind == "hub":
        files = [file for file in files if data.split in file.path.removeprefix(root)]
    if not files:
        wanted = " or ".join(f"*{ending}" for ending in _ENDINGS[data.kind])
        of_split = f" of split {data.split}" if data.kind == "hub" else ""
        raise JobError(f"training.data.path {data.path} holds no {wanted} file{of_split}")
    if not any(file.size for file in files):
        raise JobError(f"training.data.path {path} holds no text")
    return Files(filesystem, files)


def documents(found: Files, data: DataConfig) -> Iterator[Document]:
    """Every document, in order.

    Raises:
        JobError: naming file and row that cannot be read.
    """
    for file in found.files:
        if data.kind == "text":
            yield from _text(found.filesystem, file.path)
            continue
        rows = _parquet_rows if file.path.endswith(".parquet") else _json_rows
        for number, row in rows(found.filesystem, file.path, data):
            where = f"{file.path} row {number}"
            yield Document(where, _value(row, data, where))


def _open(path: str) -> tuple[fs.FileSystem, str]:
    try:
        return fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    except (ValueError, OSError) as error:
        raise JobError(f"training.data.path {path} cannot be opened: {first_line(error)}") from error


def _hub_folder(data: DataConfig) -> str:
    name = data.path or ""

    def download(target: Path) -> None:
        target.write_text(snapshot_download(name, repo_type="dataset", revision=data.revision,
                                            allow_patterns=["*.parquet", "*.jsonl", "*.jsonl.gz"]))

    try:
        return once_per_node(f"dataset-{name}-{data.revision}".replace("/", "_"), download).read_text()
    except (OSError, ValueError) as error:
        raise JobError(hub_failure("training.data.path", name, data.revision, error)) from error


def _text(filesystem: fs.FileSystem, path: str) -> Iterator[Document]:
    number, rest = 0, b""
    with filesystem.open_input_stream(path) as stream:
        while block := stream.read(_PIECE):
            whole, newline, after = block.rpartition(b"\n")
            piece, rest = (rest + whole + newline, after) if newline else (b"", rest + block)
            if piece:
                yield Document(path, _decoded(piece, path, number), ends=False)
                number += len(piece)
    yield Document(path, _decoded(rest, path, number))


def _decoded(piece: bytes, path: str, start: int) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        at = start + error.start
        raise JobError(f"training.data.path: {path} is not UTF-8 text ({error.reason} at byte {at})") from error


def _json_rows(filesystem: fs.FileSystem, path: str, data: DataConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    with filesystem.open_input_stream(path, compression="detect") as stream:
        number, rest = 0, b""
        while True:
            try:
                block = stream.read(_PIECE)
            except OSError as error:
                raise JobError(f"training.data.path: {path} after row {number}: {first_line(error)}") from error
            *lines, rest = (rest + block).split(b"\n") if block else (rest, b"")
            for line in lines:
                number += 1
                if line.strip():
                    yield number, _json_row(line, f"{path} row {number}")
            if not block:
                return


def _json_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise JobError(f"training.data.path: {where} is not JSON ({first_line(error)})") from error
    if not isinstance(row, dict):
        raise JobError(f"training.data.path: {where} is a {type(row).__name__}; each line must be an object of "
                       "columns")
    return row


def _parquet_rows(filesystem: fs.FileSystem, path: str, data: DataConfig) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with filesystem.open_input_file(path) as stream:
            file = parquet.ParquetFile(stream)
            columns = columns_of(data)
            present = [column for column in columns if column in file.schema_arrow.names]
            if present != columns:
                lacking = next(column for column in columns if column not in present)
                raise JobError(_lacks(path, lacking, file.schema_arrow.names))
            for batch in file.iter_batches(1024, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (OSError, pyarrow.ArrowException) as error:
        raise JobError(f"training.data.path: {path} after row {number} is not a readable Parquet file "
                       f"({first_line(error)})") from error


def columns_of(data: DataConfig) -> list[str]:
    """The columns that a row must have."""
    return ["prompt", "completion"] if data.rows == "prompt" else [data.column or data.rows]


def _lacks(where: str, column: str, names: list[str]) -> str:
    return (f"training.data.path: {where} has no column {column}; it has {', '.join(map(str, names)) or 'none'} "
            "(training.data.rows, training.data.column)")


def _value(row: dict[str, Any], data: DataConfig, where: str) -> Any:
    values = []
    for column in columns_of(data):
        if column not in row:
            raise JobError(_lacks(where, column, list(row)))
        values.append(row[column])
        kind = list if data.rows == "messages" else str
        if not isinstance(row[column], kind):
            raise JobError(f"training.data.path: {where}: column {column} is {type(row[column]).__name__}, not "
                           + ("a list of messages" if kind is list else "text"))
    return tuple(values) if data.rows == "prompt" else values[0]
