"""Rows of a Parquet file from anybody's hands: what would fill the memory is refused before it is unpacked.

A few hundred bytes may stand for gigabytes: a page that compresses well, one entry of a dictionary that a million
values name, a list that never ends. So the pages' headers say how many rows are read at once, dictionaries stay
apart within lists until it is known how large a row becomes, and one row may hold so much and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow
import pyarrow.compute as compute
from pyarrow import parquet

from training.data_files import MOST_PARTS, MOST_ROW
from training.parquet_pages import DELTA_BYTE_ARRAY, MOST_BYTES, Page, RowGroup, pages

_SIZES = (1024, 128, 16, 1)
"""Rows at once: as many as fit."""
_WIDE = 16
"""Bytes of a number, or of a value's place in lists and dictionary."""


def rows(stream: pyarrow.NativeFile, file: parquet.ParquetFile, number: int, group: RowGroup, columns: list[str],
         ) -> Iterator[dict[str, Any] | None]:
    """Some columns of the row group `number`, row by row; None for a row that is too large.

    Raises:
        pyarrow.ArrowException, OSError: if the file is damaged, or cannot be read in pieces that fit.
    """
    for batch in _batches(stream, file, number, group, columns):
        if _fits(batch):
            yield from batch.to_pylist()
        else:
            for place in range(batch.num_rows):
                row = batch.slice(place, 1)
                yield row.to_pylist()[0] if _fits(row) else None


def _batches(stream: pyarrow.NativeFile, file: parquet.ParquetFile, number: int, group: RowGroup,
             columns: list[str]) -> Iterator[pyarrow.RecordBatch]:
    """The rows in batches of some 64 MiB, if one row is not more; dictionaries within lists stay apart."""
    apart: list[str] = []
    needed: list[Callable[[int], int]] = []
    for place, chunk in enumerate(group.chunks):
        leaf = file.schema.column(place)
        if any(leaf.path == column or leaf.path.startswith(f"{column}.") for column in columns):
            found = list(pages(stream, chunk, leaf.max_repetition_level))
            delta = any(page.encoding == DELTA_BYTE_ARRAY for page in found)
            if leaf.max_repetition_level and leaf.physical_type == "BYTE_ARRAY" and not delta:
                apart.append(leaf.path)
            needed.append(_needed(found, leaf.max_repetition_level, leaf.length or _WIDE, delta))
    size = next(size for size in _SIZES if size == 1 or sum(needs(size) for needs in needed) <= MOST_ROW)
    most = sum(needs(size) for needs in needed)
    if most > MOST_BYTES:
        raise pyarrow.ArrowInvalid(f"a row may need {most >> 20} MiB; write it in smaller pages, and no "
                                   "DELTA_BYTE_ARRAY in lists")
    reader = parquet.ParquetFile(stream, metadata=file.metadata, read_dictionary=apart, buffer_size=8 << 20)
    yield from reader.iter_batches(size, row_groups=[number], columns=columns, use_threads=False)


def _needed(found: list[Page], depth: int, width: int, delta: bool) -> Callable[[int], int]:
    """The bytes that so many rows of a column need at most.

    Args:
        depth: how many lists of lists its values lie in.
        width: bytes of a value of fixed width, or of another's place.
        delta: whether a value may repeat all that its page holds before it.
    """
    if not depth:  # a value is no larger than the page, or dictionary, that it lies in
        widest = max((width, *(page.size for page in found)))
        return lambda rows: rows * widest
    needs = [page.values * page.size if delta else page.size + page.values * width for page in found]

    def of_rows(rows: int) -> int:
        first = begun = under_way = most = 0  # first: the page that the rows begin in; begun: rows after it
        for last, need in enumerate(needs):
            while begun >= rows:
                under_way -= needs[first]
                first += 1
                begun -= found[first].begins
            under_way += need
            most = max(most, under_way)
            begun += found[last].begins if last > first else 0
        return most

    return of_rows


def _fits(batch: pyarrow.RecordBatch) -> bool:
    """Whether all of it may become objects of Python."""
    sizes = [_unfolded(column) for column in batch.columns]
    return sum(size for size, _ in sizes) <= MOST_ROW and sum(values for _, values in sizes) <= MOST_PARTS


def _unfolded(array: Any) -> tuple[int, int]:
    """Bytes of the values of an array once its dictionaries are unfolded, and their number."""
    kind = array.type
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _unfolded(array.storage)
    if pyarrow.types.is_dictionary(kind):
        lengths = compute.call_function("binary_length", [array.dictionary])
        return compute.call_function("sum", [lengths.take(array.indices)]).as_py() or 0, len(array)
    if pyarrow.types.is_nested(kind):
        inside = array.flatten()
        parts = [_unfolded(part) for part in (inside if isinstance(inside, list) else [inside])]
        return sum(size for size, _ in parts), len(array) + sum(values for _, values in parts)
    return array.nbytes, len(array)
