"""Thrift's compact protocol, in which Parquet writes what describes its data: read without its schema."""

from __future__ import annotations

from typing import Any

I32, I64, LIST, STRUCT = 5, 6, 9, 12
"""Kinds of fields, as they are written."""
Struct = dict[tuple[int, int], Any]
"""Integers, lists and structs by number and kind: a field of another kind than it should have is not there."""
_DEEPEST = 10


class ThriftError(ValueError):
    """Bytes that are no struct."""


def read_struct(data: bytes, at: int = 0, depth: int = 0) -> tuple[Struct, int]:
    """A struct, and where it ends.

    Raises:
        IndexError: where `data` ends before it does.
        ThriftError: if it is none.
    """
    fields: Struct = {}
    number = 0
    while kind := data[at] & 15:
        step, at = data[at] >> 4, at + 1
        if step:
            number += step
        else:
            number, at = _signed(data, at)
        if kind > 2:  # else a truth, which its kind says
            fields[number, kind], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (4, I32, I64):
        return _signed(data, at)
    if kind == STRUCT and depth < _DEEPEST:
        return read_struct(data, at, depth + 1)
    if kind in (LIST, 10) and depth < _DEEPEST:
        return _list(data, at, depth + 1)
    if kind in (1, 2, 3):  # within lists a truth has a byte
        return None, at + 1
    if kind == 7:
        return None, at + 8
    if kind == 8:  # bytes
        length, at = read_number(data, at)
        return None, at + length
    raise ThriftError(f"unknown kind {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    size, kind, at = data[at] >> 4, data[at] & 15, at + 1
    if size == 15:
        size, at = read_number(data, at)
    values = []
    for _ in range(size):
        data[at]  # even an empty struct has a byte: raises where a list says that it is longer than the data
        value, at = _value(data, at, kind, depth)
        values.append(value)
    return values, at


def read_number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number in as many bytes as it needs, and where it ends. Raises IndexError."""
    value = shift = 0
    while data[at] > 127 and shift < 63:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
    return value | data[at] << shift, at + 1


def _signed(data: bytes, at: int) -> tuple[int, int]:
    value, at = read_number(data, at)
    return value >> 1 ^ -(value & 1), at
