"""Logs of any size: memory stays small, and nothing is missed on the way."""

from __future__ import annotations

import io
import itertools
import tracemalloc
from collections.abc import Iterator

import pytest
from nccl_job import Job

from training.transport import TransportReader, read_logs, verdict

MIB = 1 << 20


class Endless(io.RawIOBase):
    """A stream of bytes that are made when they are read."""

    def __init__(self, parts: Iterator[bytes], size: int) -> None:
        self._parts, self._left, self._rest = parts, size, b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and self._left > 0:
            part = next(self._parts)
            self._rest, self._left = self._rest + part, self._left - len(part)
        given, self._rest = self._rest[:size], self._rest[size:]
        return given


def long_job(bad: bytes = b"") -> Iterator[bytes]:
    """A job's start, then training for ever: new numbers in each line, and once something bad."""
    job = Job(2, 4)
    yield "\n".join(job.lines()).encode() + b"\n"
    for step in itertools.count():
        rank = step % 8
        head = f"node-{rank // 4}:{100 + rank}:{1000 + step % 50} [{rank % 4}] NCCL INFO "
        yield (f"{head}AllReduce: opCount {step:x} sendbuff 0x7f{step:010x} count {step} comm 0x5 [nranks=8]\n"
               f"{head}Channel {step % 32:02d}/1 : {rank}[{rank % 4}] -> {(rank + 4) % 8}[{rank % 4}] [send] via "
               f"NET/Libfabric/{rank % 4}/GDRDMA/Shared\n").encode() * 20
        if step == 500:
            yield bad


def peak_of(stream: io.RawIOBase) -> int:
    tracemalloc.start()
    try:
        read_logs([stream])  # pyright: ignore[reportArgumentType]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_log():
    short, long = peak_of(Endless(long_job(), 2 * MIB)), peak_of(Endless(long_job(), 12 * MIB))
    assert long < short + 4 * MIB
    assert long < 16 * MIB


@pytest.mark.parametrize("byte", [b"x", b"\x00", b"\xff"])
def test_a_line_without_an_end_does_not_fill_the_memory(byte):
    assert peak_of(Endless(itertools.repeat(byte * MIB), 12 * MIB)) < 16 * MIB


def test_a_bad_line_in_the_middle_of_a_long_log_is_found():
    good, bad = Endless(long_job(), 4 * MIB), Endless(long_job(b"x via NET/Socket/0 y\n"), 4 * MIB)
    assert verdict(read_logs([good])).verdict == "efa"  # pyright: ignore[reportArgumentType]
    assert verdict(read_logs([bad])).verdict == "tcp"  # pyright: ignore[reportArgumentType]


def test_a_line_across_two_reads_is_one_line():
    """Whatever the length of what a pipe hands over."""
    text = "\n".join(Job().lines()).encode()
    for size in (1, 7, 64, 1000):
        pieces = iter([text[at:at + size] for at in range(0, len(text), size)] + [b""])

        class Pipe(io.RawIOBase):
            def read(self, _: int = -1, pieces: Iterator[bytes] = pieces) -> bytes:
                return next(pieces)

        found = verdict(read_logs([Pipe()]))  # pyright: ignore[reportArgumentType]
        assert (found.verdict, found.ranks[0].channels) == ("efa", {"NET/Libfabric": 2, "P2P": 1, "SHM": 1})


def test_a_very_long_line_is_no_proof_but_may_be_bad():
    lines = Job(2, 1).lines()
    padded = [line + " " * 5000 if "Selected provider" in line else line for line in lines]
    assert verdict(read_logs([io.StringIO("\n".join(padded))])).verdict == "unproven"
    assert verdict(read_logs([io.StringIO("\n".join([*lines, "x" * 9000 + " via NET/Socket/0"]))])).verdict == "tcp"


def test_lines_fed_one_by_one_are_the_same_as_a_file():
    reader = TransportReader()
    for line in Job().lines():
        reader.feed(line + "\n", source="worker.log")
    whole = read_logs([io.StringIO("\n".join(Job().lines()))])
    assert verdict(reader.finish()).to_json() == verdict(whole).to_json()


def test_a_progress_bar_in_front_of_a_line_ends_with_its_carriage_return():
    lines = [f" 10%|#   | 3/30\r{line}" for line in Job().lines()]
    assert verdict(read_logs([io.BytesIO("\n".join(lines).encode())])).verdict == "efa"


def test_a_log_is_of_one_rank_only_if_nobody_else_wrote_into_it():
    lines = Job(2, 1).ranks()[0]
    other = "node-1:101:301 [0] NCCL INFO Trees [0] -1/-1/-1->1->0"
    for text in ("\n".join([*lines, other]), "\n".join([other, *lines])):
        assert verdict(read_logs([io.StringIO(text)])).verdict == "unproven"
    assert verdict(read_logs([io.StringIO("\n".join(lines))])).verdict == "efa"
