"""However a log is cut, mixed or filled with garbage: `efa` only where every rank proves it, never a crash."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nccl_job import RELEASES, Job

from training.transport import Evidence, Verdict, read_logs, verdict

SAMPLES = [path.read_bytes() for path in sorted((Path(__file__).parent / "nccl_samples").glob("*.log"))]
BAD = re.compile(
    r"via NET/Socket|Using network Socket|NET plugin Socket|initialization failed|No eligible providers|"
    r"network .*not found|Could not find: .*libnccl-net|any NET plugin|completed with error|4112|NCCL error|"
    r"provider is tcp")
QUICK = settings(max_examples=150, deadline=None)


def judged(data: bytes | str) -> Verdict:
    return verdict(read_logs([io.BytesIO(data) if isinstance(data, bytes) else io.StringIO(data)]))


def unproven_by(lines: list[str]) -> str:
    """Why these lines prove nothing, found in another way than the code does; "" where they do."""
    bad = [line for line in lines if BAD.search(line)]
    if bad:
        return f"bad line {bad[0]}"
    own: dict[str, list[str]] = {}
    for line in lines:
        head = re.match(r"(node-\d+:\d+):\d+ \[\d\] NCCL INFO ", line)
        if head:
            own.setdefault(head[1], []).append(line[head.end():])
    sizes = [int(size) for line in lines for size in re.findall(r" n[rR]anks (\d+)", line)]
    sizes += [int(rank) + 1 for line in lines for rank in re.findall(r"(\d+)\[\w+\](?: ->| \[| via)", line)]
    world = max(sizes, default=0)
    if len(own) not in (1, world):
        return f"{len(own)} of {world} ranks speak"
    crossing = set()
    for speaker, said in own.items():
        if not any(re.match(r"(?i)NET/OFI Selected provider is efa( |,|$)", line) for line in said):
            return f"{speaker} does not name its provider"
        if not any(re.match("Channel .* via ", line) for line in said):
            return f"{speaker} has no channel"
        if any(re.match(r"Channel .* via NET/(AWS )?Libfabric/\d", line) for line in said):
            crossing.add(speaker.split(":")[0])
    silent = {speaker.split(":")[0] for speaker in own} - crossing
    return f"{silent} does not reach another node" if silent else ""


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    nodes, gpus = draw(st.sampled_from([(2, 1), (2, 2), (3, 2), (1, 2)]))
    bad = draw(st.frozensets(st.integers(0, nodes * gpus - 1), max_size=2))
    return Job(nodes, gpus, draw(st.sampled_from(sorted(RELEASES))), bad)


@st.composite
def mangled(draw: st.DrawFn) -> list[str]:
    """Lines of a job, some of them missing, doubled or cut short, in any order."""
    lines = draw(jobs()).lines()
    kept = [line for line, keep in zip(lines, draw(st.lists(
        st.integers(0, 9), min_size=len(lines), max_size=len(lines))), strict=True) if keep]
    doubled = draw(st.lists(st.sampled_from(kept), max_size=5)) if kept else []
    kept = draw(st.permutations(kept + doubled))
    if kept and draw(st.booleans()):
        at = draw(st.integers(0, len(kept) - 1))
        kept[at] = kept[at][:draw(st.integers(0, len(kept[at])))]
    return kept


@QUICK
@given(mangled())
def test_efa_only_when_the_lines_that_are_left_prove_it(lines):
    if judged("\n".join(lines)).verdict == "efa":
        assert not unproven_by(lines)


@QUICK
@given(jobs(), st.data())
def test_order_and_repetition_of_lines_do_not_matter(job, data):
    lines = job.lines()
    again = data.draw(st.permutations(lines + data.draw(st.lists(st.sampled_from(lines), max_size=9))))
    first, second = judged("\n".join(lines)), judged("\n".join(again))
    assert (second.verdict, second.reasons) == (first.verdict, first.reasons)


@QUICK
@given(jobs(), st.data())
def test_a_log_that_is_cut_at_any_byte_is_never_better_than_what_is_left(job, data):
    text = "\n".join(job.lines())
    left = text[data.draw(st.integers(0, len(text))):data.draw(st.integers(0, len(text)))]
    found = judged(left)
    if found.verdict == "efa":
        assert not unproven_by(left.split("\n"))
    if not job.on_sockets:
        assert found.verdict in ("efa", "unproven"), "a cut makes no fault"


@QUICK
@given(jobs(), st.sampled_from(SAMPLES), st.data())
def test_a_bad_log_anywhere_in_a_good_one_is_not_hidden(job, bad, data):
    lines = job.lines()
    for line in bad.decode().splitlines():
        lines.insert(data.draw(st.integers(0, len(lines))), line)
    if judged("\n".join(lines)).verdict == "efa":
        assert not any(BAD.search(line) for line in lines)


@QUICK
@given(jobs(), st.integers(2, 200), st.data())
def test_two_ranks_writing_into_each_others_lines_prove_nothing_wrong(job, piece, data):
    """Two streams written to one file in pieces that do not end with lines."""
    ranks = ["\n".join(lines) + "\n" for lines in job.ranks().values()]
    mixed = ""
    while any(ranks):
        turn = data.draw(st.integers(0, len(ranks) - 1))
        mixed, ranks[turn] = mixed + ranks[turn][:piece * 9], ranks[turn][piece * 9:]
        if not ranks[turn]:
            ranks = [rank for rank in ranks if rank]
    if judged(mixed).verdict == "efa":
        assert not job.on_sockets


@QUICK
@given(st.binary(max_size=2000), st.sampled_from(SAMPLES), st.integers(0, 400))
def test_garbage_is_no_crash_and_no_proof(garbage, sample, at):
    assert judged(garbage).verdict == "unproven"
    assert judged(sample[:at] + garbage + sample[at:]).to_json()


@pytest.mark.skipif(not os.environ.get("NCCL_LOGS"), reason="NCCL_LOGS names no folder of real logs")
@QUICK
@given(st.data())
def test_a_real_bad_log_stays_bad_whatever_is_cut_out_around_its_bad_line(data):
    logs = [path.read_text().splitlines() for path in sorted(Path(os.environ["NCCL_LOGS"]).glob("*.log"))]
    lines = data.draw(st.sampled_from([log for log in logs if any(BAD.search(line) for line in log)]))
    good = data.draw(st.sampled_from([log for log in logs if not any(BAD.search(line) for line in log)]))
    kept = data.draw(st.lists(st.sampled_from(lines + good), max_size=40))
    kept.append(data.draw(st.sampled_from([line for line in lines if BAD.search(line)])))
    assert judged("\n".join(data.draw(st.permutations(kept)))).verdict != "efa"


@QUICK
@given(mangled(), st.sampled_from(SAMPLES), st.data())
def test_records_of_several_readers_merge_to_what_one_reader_finds(lines, sample, data):
    """However the lines lie in files, and in whatever order the records come."""
    files = data.draw(st.integers(2, 4))
    parts: list[list[str]] = [[] for _ in range(files)]
    for line in [*lines, *sample.decode().splitlines()]:
        parts[data.draw(st.integers(0, files - 1))].append(line)
    texts = ["\n".join(part) for part in parts]
    whole = read_logs([io.StringIO(text) for text in texts])
    records = [json.dumps(read_logs([io.StringIO(text)]).to_dict()) for text in texts]
    merged = Evidence().merge(Evidence.from_dict(json.loads(record)) for record in reversed(records))
    assert verdict(merged).to_json() == verdict(whole).to_json()
