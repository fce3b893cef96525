"""Files, folders, archives and standard input, as documents: any size in bounded memory."""

from __future__ import annotations

import gzip
import io
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from ops.diagnose.evidence import Document
from ops.errors import NothingToDoError

_CHUNK = 1 << 20
_HEAD = 4 << 20
"""Bytes of a document that are kept whole; of what follows only lines with a telling word."""
_MOST_TELLING = 20_000
_MOST_LINE = 8 << 10
_MOST_FILES = 5000
_MOST_UNPACKED = 2 << 30
_MOST_RATIO = 400
"""Unpacked bytes an archive's byte may become; gzip's own limit is about 1000, that of logs 10 to 50."""

# A line without any of these words tells nothing of a fault.
_TELLING = tuple(word.encode() for word in (
    "error", "fail", "exception", "traceback", "killed", "oom", "denied", "timeout", "timed out", "exceed",
    "insufficient", "refused", "unable", "cannot", "could not", "no space", "evict", "nvrm", "xid", "ecc", "abort",
    "watchdog", "nan", " inf ", " inf\n", "=inf", "sigterm", "sigkill", "exhausted", "terminat", "too many",
    "unhealthy", "mismatch", "not found", "limit", "invalid", "enqueued", "skipp", "batches", " via net/",
    "net/ofi", "libfabric", "socket", "spill", "died"))
_STEP = re.compile(rb"step\W{0,3}\d+\b[^\n]*loss", re.IGNORECASE)


def read(names: Sequence[str]) -> list[Document]:
    """The documents of files, folders, archives (.zip, .tar, .tar.gz) and, for `-`, standard input.

    Raises:
        NothingToDoError: a name leads nowhere, cannot be read, or holds nothing.
    """
    documents: list[Document] = []
    for name in names:
        found = [_document("standard input", sys.stdin.buffer)] if name == "-" else list(_of(Path(name), name))
        if not any(len(document) for document in found):
            raise NothingToDoError(f"{name}: holds no text; give logs, `kubectl get events`, `kubectl describe` or "
                                   "a bundle")
        documents += found
    return documents


def _of(path: Path, name: str) -> Iterator[Document]:
    try:
        if not path.exists():
            raise NothingToDoError(f"{name}: no such file or folder; give logs, events or a bundle, - for standard "
                                   "input, or nothing at all to look at the cluster itself")
        if path.is_dir():
            yield from _folder(path)
        elif not path.is_file():
            raise NothingToDoError(f"{name}: neither a file nor a folder")
        else:
            yield from _file(path, str(path))
    except (OSError, EOFError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise NothingToDoError(f"{name}: {getattr(error, 'strerror', None) or error or 'cannot be read'}") from None


def _folder(folder: Path) -> Iterator[Document]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    if len(files) > _MOST_FILES:
        raise NothingToDoError(f"{folder}: more than {_MOST_FILES} files; name a folder further down")
    for path in files:
        if path.resolve().is_relative_to(folder.resolve()):  # a link may not lead out of what was given
            yield from _file(path, str(path))


def _file(path: Path, name: str) -> Iterator[Document]:
    with path.open("rb") as stream:
        start = stream.read(4)
    if start == b"PK\x03\x04":
        yield from _zip(path, name)
    elif start[:2] == b"\x1f\x8b" or path.suffix == ".tar":
        yield from _tar(path, name)
    else:
        with path.open("rb") as stream:
            yield _document(name, stream)


def _zip(path: Path, name: str) -> Iterator[Document]:
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        _check(name, path, [member.file_size for member in members])
        for member in members:
            with archive.open(member) as stream:
                yield _document(f"{name}:{_plain(member.filename)}", _Limited(stream, member.file_size))


def _tar(path: Path, name: str) -> Iterator[Document]:
    """Nothing is unpacked to the disk: names in an archive lead nowhere, links are passed over."""
    try:
        archive = tarfile.open(path, "r:*")  # noqa: SIM115
    except tarfile.ReadError:
        yield from _gzip(path, name)
        return
    with archive:
        sizes: list[int] = []
        for member in archive:
            sizes.append(member.size)
            _check(name, path, sizes)
            if member.isfile() and (stream := archive.extractfile(member)):
                yield _document(f"{name}:{_plain(member.name)}", stream)


def _gzip(path: Path, name: str) -> Iterator[Document]:
    with gzip.open(path, "rb") as stream:
        yield _document(name, _Limited(stream, min(_MOST_UNPACKED, path.stat().st_size * _MOST_RATIO)))


def _check(name: str, path: Path, sizes: Sequence[int]) -> None:
    if len(sizes) > _MOST_FILES:
        raise NothingToDoError(f"{name}: more than {_MOST_FILES} files in it; unpack it and name a folder")
    if sum(sizes) > min(_MOST_UNPACKED, max(_HEAD, path.stat().st_size * _MOST_RATIO)):
        raise NothingToDoError(f"{name}: unpacks into {sum(sizes) / 2**30:.1f} GiB or more, which no bundle does; "
                               "unpack it and name a folder")


def _plain(member: str) -> str:
    """A member's name as something to show, whatever is in it."""
    return "".join(c if c.isprintable() else "?" for c in member)[:200]


class _Limited:
    """A stream that may not give more than it announced."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self._stream, self._left = stream, most

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("unpacks into more than it says")
        return data


def _document(name: str, stream: IO[bytes] | _Limited) -> Document:
    """Its lines; beyond the first megabytes only those with a telling word, and the first and last steps."""
    start = stream.read(_HEAD)
    if start[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what PowerShell writes
        text = (start + stream.read(_HEAD)).decode("utf-16", errors="replace")
        return Document(name, _rows(text.encode()))
    if b"\0" in start[:1024]:
        return Document(name, [])  # a picture, a checkpoint, …
    more = stream.read(_CHUNK)
    if not more:
        return Document(name, _rows(start))
    end = start.rfind(b"\n") + 1 or len(start)
    rows = _rows(start[:end])
    numbers = list(range(1, len(rows) + 1))
    first: list[tuple[int, str]] = []
    last: list[tuple[int, str]] = []
    for number, row in _telling(start[end:] + more, stream, len(rows) + 1):
        if len(first) < _MOST_TELLING:
            first.append((number, row))
        else:
            last.append((number, row))
            if len(last) >= 2 * _MOST_TELLING:
                del last[:_MOST_TELLING]
    kept = [*first, *last]
    return Document(name, rows + [row for _, row in kept], numbers + [number for number, _ in kept])


def _telling(data: bytes, stream: IO[bytes] | _Limited, number: int) -> Iterator[tuple[int, str]]:
    """Lines with a telling word, with their numbers; `number` is that of the first line."""
    rest = data
    while True:
        more = stream.read(_CHUNK)
        end = (rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > 4 * _CHUNK else 0)) if more else len(rest)
        chunk, rest = rest[:end], rest[end:] + more
        lower = chunk.lower()
        starts: dict[int, int] = {}
        for word in _TELLING:
            at = lower.find(word)
            while at >= 0:
                stop = chunk.find(b"\n", at)
                stop = len(chunk) if stop < 0 else stop
                starts[chunk.rfind(b"\n", 0, at) + 1] = stop
                at = lower.find(word, stop)
        for found in _first_and_last_step(chunk):
            starts.setdefault(*found)
        counted = 0
        for begin in sorted(starts):
            number += chunk.count(b"\n", counted, begin)
            counted = begin
            yield number, _text(chunk[begin:starts[begin]])
        number += chunk.count(b"\n", counted)
        if not more:
            return


def _first_and_last_step(chunk: bytes) -> Iterator[tuple[int, int]]:
    for start in (0, max(0, len(chunk) - (16 << 10))):
        if found := _STEP.search(chunk, start):
            end = chunk.find(b"\n", found.start())
            yield chunk.rfind(b"\n", 0, found.start()) + 1, len(chunk) if end < 0 else end


def _rows(data: bytes) -> list[str]:
    return [_text(row) for row in io.BytesIO(data.removeprefix(b"\xef\xbb\xbf"))]


def _text(row: bytes) -> str:
    # of a progress bar's many states the last
    return row.rstrip(b"\r\n").rpartition(b"\r")[2][:_MOST_LINE].decode(errors="replace")
