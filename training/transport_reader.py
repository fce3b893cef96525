"""Read logs of any size in constant memory: only lines with a telling word are looked at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from training.transport_evidence import Evidence
from training.transport_lines import COLLECTIVE_WORDS, WORDS, Said, Speaker, said

_CHUNK = 1 << 20  # bytes
_MOST_TAGS = 20_000


class TransportReader:
    """Takes lines or streams and keeps what they say.

    A fault in a line without NCCL's header (Libfabric's abort, a traceback) belongs to the one process that
    writes under the same prefix in the same source; where several do, it belongs to the whole run.
    """

    def __init__(self) -> None:
        self._evidence = Evidence()
        self._sources: set[str] = set()
        self._tags: dict[tuple[str, str], set[Speaker]] = {}
        self._orphans: dict[tuple[str, str, str], str] = {}

    def feed(self, line: str, source: str = "-") -> None:
        """Take one line, with or without its end; `source` names the file that it stands in."""
        self._sources.add(source)
        text = line.rstrip("\r\n")
        found = said(text)
        if found is not None:
            self._take(found, source)

    def read(self, stream: IO[Any], source: str = "-") -> None:
        """Take a whole stream of bytes or text."""
        self._sources.add(source)
        rest = b""
        while chunk := stream.read(_CHUNK):
            data = chunk.encode(errors="replace") if isinstance(chunk, str) else chunk
            # a progress bar's carriage return ends a line too
            data = rest + data.replace(b"\r", b"\n")
            end = data.rfind(b"\n") + 1
            if end == 0 and len(data) > _CHUNK:
                end = len(data)  # a line of a megabyte is no log line
            self._scan(data[:end], source)
            rest = data[end:]
        # a log that was cut in the middle of a line still tells who wrote there
        self.feed(rest.decode(errors="replace"), source)

    def finish(self) -> Evidence:
        """What was read so far."""
        for (source, tag, code), text in self._orphans.items():
            speakers = self._tags.get((source, tag), set())
            if len(speakers) == 1:
                self._evidence.process(next(iter(speakers))).fault(code, text)
            else:
                self._evidence.unclaimed[code] = min(self._evidence.unclaimed.get(code, text), text)
        self._orphans.clear()
        self._evidence.sources = len(self._sources)
        return self._evidence

    def _scan(self, data: bytes, source: str) -> None:
        """Feed the lines that hold a telling word."""
        words = _WORDS if self._evidence.collectives else _WORDS + _COLLECTIVE_WORDS
        lines: dict[int, int] = {}
        for word in words:
            at = data.find(word)
            while at >= 0:
                start = data.rfind(b"\n", 0, at) + 1
                end = data.find(b"\n", at)
                end = len(data) if end < 0 else end
                lines[start] = end
                at = data.find(word, end)
        for start, end in lines.items():  # in no order: none of it matters
            self.feed(data[start:end].decode(errors="replace"), source)
        if len(self._evidence.processes) < 2:
            self._look_for_others(data, source)

    def _look_for_others(self, data: bytes, source: str) -> None:
        """Feed a line of another process, should there be one that says nothing else: a log is of one rank alone
        only if nobody else wrote into it.
        """
        known = [f"{host}:{pid}:".encode() for host, pid in self._evidence.processes]
        if known and data.count(_HEADER_END) <= data.count(known[0]):
            return
        at = data.find(_HEADER_END)
        while at >= 0:
            start, end = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            line = data[start:end if end >= 0 else len(data)]
            if not known or known[0] not in line:
                self.feed(line.decode(errors="replace"), source)
                known = [f"{host}:{pid}:".encode() for host, pid in self._evidence.processes]
            at = data.find(_HEADER_END, end) if end >= 0 and len(known) < 2 else -1

    def _take(self, line: Said, source: str) -> None:
        evidence = self._evidence
        evidence.repeated += line.repeated
        evidence.collectives = evidence.collectives or line.collective
        if line.speaker is None:
            for code in line.faults:
                key = (source, line.tag, code)
                if key in self._orphans or len(self._orphans) < _MOST_TAGS:
                    self._orphans[key] = min(self._orphans.get(key, line.text), line.text)
            return
        evidence.process(line.speaker).hear(line)
        known = self._tags.get((source, line.tag))
        if known is None:
            if len(self._tags) < _MOST_TAGS:
                self._tags[source, line.tag] = {line.speaker}
        elif len(known) < 2:  # two are enough to know that the prefix does not tell them apart
            known.add(line.speaker)


_HEADER_END = b"] NCCL INFO "
_WORDS = tuple(word.encode() for word in WORDS)
_COLLECTIVE_WORDS = tuple(word.encode() for word in COLLECTIVE_WORDS)


def read_logs(logs: Iterable[Path | IO[Any]], rank: int | None = None) -> Evidence:
    """What the logs say together.

    Args:
        logs: files, folders (all files below them) or open streams of text or bytes.
        rank: the rank of the job whose own logs these are, where the reader knows it.

    Raises:
        OSError: a file or folder cannot be read.
    """
    reader = TransportReader()
    done: set[Path] = set()
    for number, log in enumerate(logs):
        if isinstance(log, Path):
            for path in files_below(log):
                if path.resolve() not in done:
                    done.add(path.resolve())
                    with path.open("rb") as stream:
                        reader.read(stream, str(path))
        else:
            reader.read(log, f"<stream {number}>")
    evidence = reader.finish()
    if rank is not None:
        evidence.claim_rank(rank)
    return evidence


def files_below(path: Path) -> list[Path]:
    """The file itself, or all regular files below a folder, in order."""
    if not path.is_dir():
        return [path]
    return sorted(found for found in path.rglob("*") if found.is_file())
