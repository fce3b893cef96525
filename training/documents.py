"""Documents of files, one after the other: never a whole file in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import fs, parquet

from training.config import DataConfig
from training.data_files import Files, Slice
from training.errors import JobError, first_line

_PIECE = 1 << 20
"""Bytes of a text file at once, cut at a line's end: bounds the tokenizer's memory."""
_MOST_ROW = 256 << 20
"""Bytes of one packed row: a few KiB may unpack into one that fills a node's memory."""


@dataclass(frozen=True)
class Place:
    """A row of a file; `str()` is how an error names it: `/data/a.jsonl row 3`."""

    name: str
    row: int | None
    """From 1, counted from `start`; None: the whole file."""
    start: int = 0
    """Byte where counting began; rows before it are counted when somebody asks."""
    files: tuple[fs.FileSystem, str] | None = None

    def __str__(self) -> str:
        if self.row is None:
            return self.name
        before = _newlines(*self.files, self.start) if self.files and self.start else 0
        return f"{self.name} row {before + self.row}"

    @property
    def brief(self) -> str:
        """The same without reading: rows are counted from a byte in the middle of a large file."""
        if self.row is None or not self.start:
            return str(self)
        return f"{self.name} row {self.row} from byte {self.start}"


@dataclass(frozen=True)
class Document:
    """A document, or a piece of one: `begins` is set on the first piece, `ends` on the last."""

    where: Place
    value: Any
    """Text, a list of messages, or (prompt, completion)."""
    begins: bool = True
    ends: bool = True


def documents(found: Files, slices: Iterable[Slice], data: DataConfig) -> Iterator[Document]:
    """Every document of the slices, in order.

    Raises:
        JobError: naming file and row that cannot be read.
    """
    for one in slices:
        filesystem, path = found.opened(one.file)
        name = found.name(one.file)
        if data.kind == "text":
            yield from _text(filesystem, path, name, one)
            continue
        rows = _parquet_rows if path.endswith(".parquet") else _json_rows
        for where, row in rows(filesystem, path, name, one, data):
            yield Document(where, _value(row, data, where))


def _blocks(filesystem: fs.FileSystem, path: str, one: Slice) -> Iterator[tuple[int, bytes]]:
    """The lines that begin inside of a slice, with the byte of the first: whole ones, about a piece at once."""
    low, high = (one.file.size * i // one.count for i in (one.index, one.index + 1))
    last = one.index == one.count - 1
    with filesystem.open_input_file(path) as stream:
        start, rest = low, b""
        if low:
            stream.seek(low - 1)
            skipped = stream.read(1)
            while skipped[-1:] != b"\n" and (line := stream.read(_PIECE)):
                before, newline, rest = line.partition(b"\n")
                start += len(before) + len(newline)
                skipped = newline or line
            if start >= high and not last:
                return
        while True:
            block = stream.read(_PIECE)
            lines, rest = rest + block, b""
            if block:
                whole, newline, rest = lines.rpartition(b"\n")
                lines = whole + newline
            if not last and start + len(lines) >= high:  # only the line that is under way at `high` goes on
                end = lines.find(b"\n", max(0, high - 1 - start))
                if end >= 0:
                    yield start, lines[: end + 1]
                    return
            if lines:
                yield start, lines
                start += len(lines)
            if not block:
                return


def _text(filesystem: fs.FileSystem, path: str, name: str, one: Slice) -> Iterator[Document]:
    where, begins = Place(name, None), one.index == 0
    for start, lines in _blocks(filesystem, path, one):
        yield Document(where, _decoded(lines, name, start), begins=begins, ends=False)
        begins = False
    if one.index == one.count - 1:
        yield Document(where, "", begins=begins)


def _decoded(piece: bytes, name: str, start: int) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError as error:
        at = start + error.start
        raise JobError(f"training.data.path: {name} is not UTF-8 text ({error.reason} at byte {at})") from error


Rows = Iterator[tuple[Place, dict[str, Any]]]


def _json_rows(filesystem: fs.FileSystem, path: str, name: str, one: Slice, data: DataConfig) -> Rows:
    blocks = _unpacked(filesystem, path, name) if path.endswith(".gz") else _blocks(filesystem, path, one)
    first, number = None, 0
    for start, lines in blocks:
        first = start if first is None else first
        for line in lines.removesuffix(b"\n").split(b"\n"):
            number += 1
            if line.strip():
                where = Place(name, number, first, (filesystem, path))
                yield where, _json_row(line, where)


def _unpacked(filesystem: fs.FileSystem, path: str, name: str) -> Iterator[tuple[int, bytes]]:
    with filesystem.open_input_stream(path, compression="detect") as stream:
        row, rest, block = 0, b"", b" "
        while block:
            try:
                block = stream.read(_PIECE)
            except OSError as error:
                raise JobError(f"training.data.path: {name} after row {row}: {first_line(error)}") from error
            lines, rest = rest + block, b""
            if block:
                whole, newline, rest = lines.rpartition(b"\n")
                lines = whole + newline
            row += lines.count(b"\n")
            if len(rest) > _MOST_ROW:
                raise JobError(f"training.data.path: {name} row {row + 1} unpacks into more than "
                               f"{_MOST_ROW >> 20} MiB; split it, or leave it out")
            if lines:
                yield 0, lines


def _newlines(filesystem: fs.FileSystem, path: str, before: int) -> int:
    """Newlines in the first `before` bytes."""
    found = 0
    with filesystem.open_input_stream(path) as stream:
        while before and (block := stream.read(min(_PIECE, before))):
            found += block.count(b"\n")
            before -= len(block)
    return found


def _json_row(line: bytes, where: Place) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise JobError(f"training.data.path: {where} is not JSON ({first_line(error)})") from error
    if not isinstance(row, dict):
        raise JobError(f"training.data.path: {where} is a {type(row).__name__}; each line must be an object of "
                       "columns")
    return row


def _parquet_rows(filesystem: fs.FileSystem, path: str, name: str, one: Slice, data: DataConfig) -> Rows:
    number = 0
    try:
        with filesystem.open_input_file(path) as stream:
            file = parquet.ParquetFile(stream)
            columns = columns_of(data)
            present = [column for column in columns if column in file.schema_arrow.names]
            if present != columns:
                lacking = next(column for column in columns if column not in present)
                raise JobError(_lacks(name, lacking, file.schema_arrow.names))
            groups = file.num_row_groups
            mine = range(groups * one.index // one.count, groups * (one.index + 1) // one.count)
            number = sum(file.metadata.row_group(group).num_rows for group in range(mine.start))
            for batch in file.iter_batches(1024, row_groups=list(mine), columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield Place(name, number), row
    except (OSError, pyarrow.ArrowException) as error:
        raise JobError(f"training.data.path: {name} after row {number} is not a readable Parquet file "
                       f"({first_line(error)})") from error


def columns_of(data: DataConfig) -> list[str]:
    """The columns that a row must have."""
    return ["prompt", "completion"] if data.rows == "prompt" else [data.column or data.rows]


def _lacks(where: Place | str, column: str, names: list[str]) -> str:
    return (f"training.data.path: {where} has no column {column}; it has {', '.join(map(str, names)) or 'none'} "
            "(training.data.rows, training.data.column)")


def _value(row: dict[str, Any], data: DataConfig, where: Place) -> Any:
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
