"""What the pages of a Parquet file unpack into, by their own headers, before any of them is unpacked.

The sizes in the footer are claims that readers need not keep to. They do keep to the header of each page: it says
how many bytes the page unpacks into, and how many values it has (parquet-format 2.11, parquet.thrift).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow

from training.thrift import I32, I64, LIST, STRUCT, Struct, ThriftError, read_number, read_struct

DELTA_BYTE_ARRAY = 7
"""The encoding in which a value repeats the beginning of the one before: two bytes may stand for a megabyte."""
MOST_BYTES = 256 << 20
"""That a page may unpack into. Writers make them of 1 MiB, a few of a whole row group."""
MOST_VALUES = 32 << 20
"""That a page may have: of a short word that always repeats, a page of 1 MiB has millions."""
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_OWN = {_DATA: (5, STRUCT), _DICTIONARY: (7, STRUCT), _DATA_V2: (8, STRUCT)}
_RLE = 3
_CODECS = {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_HEADER_BYTES = 16 << 20
"""Of a page's header at most, as in Arrow: statistics of long values lie in it."""


@dataclass(frozen=True)
class Chunk:
    """A column in a row group."""

    start: int
    """Its first byte in the file."""
    end: int
    codec: int


@dataclass(frozen=True)
class RowGroup:
    """A row group, as the footer has it."""

    rows: int
    chunks: list[Chunk]


@dataclass(frozen=True)
class Page:
    """A page of a column, not unpacked."""

    size: int
    """Bytes that it unpacks into."""
    values: int
    """Values in it; entries of a dictionary."""
    encoding: int
    begins: int
    """Rows that begin in it: the values of a list may go on over many pages."""


def row_groups(stream: pyarrow.NativeFile) -> list[RowGroup]:
    """The row groups of a file. pyarrow's own view of them ends the process where a footer is malformed.

    Raises:
        pyarrow.ArrowInvalid: if the footer is none.
    """
    size = stream.size()
    length = int.from_bytes(stream.read_at(4, max(0, size - 8)), "little")
    try:
        footer, _ = read_struct(stream.read_at(min(length, size), max(0, size - 8 - length)))
        return [RowGroup(group[3, I64], [_chunk(column[3, STRUCT]) for column in group[1, LIST]])
                for group in footer[4, LIST]]
    except (KeyError, TypeError, IndexError, ThriftError) as error:
        raise pyarrow.ArrowInvalid("its footer is damaged") from error


def _chunk(found: Struct) -> Chunk:
    start = found[9, I64]
    dictionary = found.get((11, I64), 0)
    if 0 < dictionary < start:
        start = dictionary
    return Chunk(start, start + found[7, I64], found[4, I32])


def pages(stream: pyarrow.NativeFile, chunk: Chunk, depth: int) -> Iterator[Page]:
    """The pages of a column in a row group, in order.

    Args:
        stream: of the file.
        depth: how many lists of lists the column's values lie in (its highest repetition level).

    Raises:
        pyarrow.ArrowInvalid: if a page is damaged, or too large.
    """
    start = chunk.start
    while start < chunk.end:
        header, length = _header(stream, start)
        kind, size, packed = (header.get((number, I32), -1) for number in (1, 2, 3))
        if packed < 0 or size < 0:
            raise pyarrow.ArrowInvalid(f"the page at byte {start} has no size")
        if kind in _OWN:
            own = header.get(_OWN[kind], {})
            values, encoding = own.get((1, I32), 0), own.get((4 if kind == _DATA_V2 else 2, I32), 0)
            if size > MOST_BYTES or values > MOST_VALUES:
                raise pyarrow.ArrowInvalid(f"a page would unpack into {size >> 20} MiB and {values} values; write "
                                           "it in smaller pages")
            begins = values
            if depth and kind != _DICTIONARY:
                levels = _levels(stream.read_at(packed, start + length), kind, own, size, chunk.codec)
                begins = _zeros(levels, depth.bit_length(), values)
            yield Page(size, values, encoding, begins)
        start += length + packed


def _levels(body: bytes, kind: int, own: Struct, size: int, codec: int) -> memoryview:
    """The repetition levels of a data page, as they are encoded; nothing where they cannot be had."""
    if kind == _DATA_V2:
        return memoryview(body)[: max(0, own.get((6, I32), 0))]  # never compressed
    if own.get((4, I32)) != _RLE:
        return memoryview(b"")
    data = memoryview(body)
    if codec:
        try:
            data = memoryview(pyarrow.decompress(body, size, _CODECS[codec]))  # pyright: ignore[reportArgumentType]
        except (KeyError, OSError, pyarrow.ArrowException):
            return memoryview(b"")  # the older LZ4, or damage, which the reader will name
    return data[4 : 4 + int.from_bytes(data[:4], "little")]


def _zeros(levels: memoryview, width: int, count: int) -> int:
    """How many of `count` levels of `width` bits are 0, where a row begins: in runs, and packed by eights."""
    at = seen = zeros = 0
    try:
        while seen < count:
            head, at = read_number(levels, at)
            if head & 1:
                packed = np.frombuffer(levels[at : at + (head >> 1) * width], np.uint8)
                whole = min(len(packed) * 8 // width, count - seen)
                bits = np.unpackbits(packed[: (whole * width + 7) // 8], count=whole * width, bitorder="little")
                zeros += whole - int(bits.reshape(-1, width).any(axis=1).sum())
                at += (head >> 1) * width
                seen += (head >> 1) * 8
            else:
                zeros += 0 if levels[at] else min(head >> 1, count - seen)  # one byte: no list is 255 deep
                at += 1
                seen += head >> 1
    except IndexError:
        pass  # cut short
    return zeros


def _header(stream: pyarrow.NativeFile, start: int) -> tuple[Struct, int]:
    """A page's header, and its length."""
    asked = 4 << 10
    while True:
        data = stream.read_at(asked, start)
        try:
            return read_struct(data)
        except IndexError:
            if len(data) < asked or asked >= _HEADER_BYTES:
                raise pyarrow.ArrowInvalid(f"no page at byte {start}") from None
            asked *= 16
        except ThriftError as error:
            raise pyarrow.ArrowInvalid(f"no page at byte {start}: {error}") from error
