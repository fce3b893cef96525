"""Documents of files, one after the other: never a whole file in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import fs, parquet

from training import parquet_pages, parquet_rows
from training.config import DataConfig
from training.data_files import MOST_PARTS, MOST_ROW, Files, Slice
from training.errors import JobError, first_line

_PIECE = 1 << 20
"""Bytes of a text file at once, cut at a line's end: bounds the tokenizer's memory."""
_SMALL_ROW = 4 << 20
"""Bytes of a row whose values need not be counted."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


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


def _blocks(filesystem: fs.FileSystem, path: str, name: str, one: Slice) -> Iterator[tuple[int, bytes]]:
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
        try:
            for lines in _whole_lines(stream, rest):
                if not last and start + len(lines) >= high:  # only the line that is under way at `high` goes on
                    end = lines.find(b"\n", max(0, high - 1 - start))
                    if end >= 0:
                        yield start, lines[: end + 1]
                        return
                yield start, lines
                start += len(lines)
        except _LongLineError:
            raise _too_large(Place(name, 1, start, (filesystem, path))) from None


class _LongLineError(Exception):
    """A line is larger than a row may be."""


def _whole_lines(stream: pyarrow.NativeFile, rest: bytes = b"") -> Iterator[bytes]:
    """What a stream holds after `rest`, about a piece at once, cut at the end of a line."""
    held, size = [rest], len(rest)
    while block := stream.read(_PIECE):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join([*held, block[:end]])
            held, size = [], 0
        held.append(block[end:])
        size += len(block) - end
        if size > MOST_ROW:
            raise _LongLineError
    if size:
        yield b"".join(held)


def _too_large(where: Place | str) -> JobError:
    return JobError(f"training.data.path: {where} unpacks into more than {MOST_ROW >> 20} MiB, or too many values; "
                    "split it, or leave it out")


def _text(filesystem: fs.FileSystem, path: str, name: str, one: Slice) -> Iterator[Document]:
    where, begins = Place(name, None), one.index == 0
    for start, lines in _blocks(filesystem, path, name, one):
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
    blocks = _unpacked(filesystem, path, name) if path.endswith(".gz") else _blocks(filesystem, path, name, one)
    first, number = None, 0
    for start, lines in blocks:
        first = start if first is None else first
        for line in lines.removesuffix(b"\n").split(b"\n"):
            number += 1
            if line.strip():
                where = Place(name, number, first, (filesystem, path))
                yield where, _json_row(line, where)


def _unpacked(filesystem: fs.FileSystem, path: str, name: str) -> Iterator[tuple[int, bytes]]:
    row = 0
    try:
        with filesystem.open_input_stream(path, compression="detect") as stream:
            for lines in _whole_lines(stream):
                row += lines.count(b"\n")
                yield 0, lines
    except _LongLineError:
        raise _too_large(Place(name, row + 1)) from None
    except OSError as error:
        raise JobError(f"training.data.path: {name} after row {row}: {first_line(error)}") from error


def _newlines(filesystem: fs.FileSystem, path: str, before: int) -> int:
    """Newlines in the first `before` bytes."""
    found = 0
    with filesystem.open_input_stream(path) as stream:
        while before and (block := stream.read(min(_PIECE, before))):
            found += block.count(b"\n")
            before -= len(block)
    return found


def _json_row(line: bytes, where: Place) -> dict[str, Any]:
    if len(line) > _SMALL_ROW and sum(map(_STRING.sub(b"", line).count, (b",", b"[", b"{"))) > MOST_PARTS:
        raise _too_large(where)
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
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
            groups = parquet_pages.row_groups(stream)
            mine = range(len(groups) * one.index // one.count, len(groups) * (one.index + 1) // one.count)
            number = sum(group.rows for group in groups[: mine.start])
            for group in mine:
                for row in parquet_rows.rows(stream, file, group, groups[group], columns):
                    number += 1
                    if row is None:
                        raise _too_large(Place(name, number))
                    yield Place(name, number), row
    except (OSError, UnicodeDecodeError, pyarrow.ArrowException) as error:
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
