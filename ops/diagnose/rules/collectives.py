"""Ranks that wait for each other: who never came, and what it did instead."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from ops.diagnose.evidence import Evidence
from ops.diagnose.finding import INFERRED, LIKELY, SYMPTOM, Finding, ranks_in_words
from ops.diagnose.lines import Line

_TIMEOUT = re.compile(r"(?:Watchdog caught collective operation timeout|collective operation timeout)[^\n]*?"
                      r"(?:SeqNum=(?P<seq>\d+))?[^\n]*?(?:OpType=(?P<op>\w+))?[^\n]*?(?:ran for (?P<ms>\d+))?")
_SEQ, _OP, _RAN = (re.compile(p) for p in (r"SeqNum=(\d+)", r"OpType=(\w+)", r"ran for (\d+) mill"))
_ENQUEUED = re.compile(r"last enqueued(?: NCCL)? work:? (?P<last>\d+)", re.IGNORECASE)
_SHORT_DATA = re.compile(
    r"exhausted|ran out of (?:data|batches)|StopIteration|end of (?:data|epoch|dataset)|epoch-?end|"
    r"(?:skipp\w+|dropp\w+|filter\w+)[^\n]*(?:sample|batch|sequence|row)|(?:sample|batch|sequence|row)s?[^\n]*"
    r"(?:skipp|dropp|filter)|only (?P<n>\d+) (?:batches|steps)|finished after (?P<m>\d+)", re.IGNORECASE)
_BATCHES = re.compile(r"(?P<count>\d+) (?:batches|steps)\b", re.IGNORECASE)
_OWN_ERROR = re.compile(r"\b\w*(?:Error|Exception)\b|\bfail(?:ed|ure|ures=[1-9])|swallow|ignoring|giving "
                        r"up", re.IGNORECASE)
_NOT_OWN = re.compile(r"Watchdog|ProcessGroupNCCL|NCCL error|DistBackendError|collective|TORCH_NCCL|FlightRecorder")


@dataclass(frozen=True)
class Wait:
    """A rank that waited in a collective until the watchdog ended it."""

    rank: int
    sequence: int | None
    operation: str
    line: Line


def findings(evidence: Evidence) -> list[Finding]:
    """From the ranks' watchdogs; one rank's alone decides nothing."""
    waits = _waits(evidence)
    if not waits:
        return []
    lines = [wait.line for wait in waits.values()]
    return (_other_collective(evidence, waits) or _never_entered(evidence, waits)
            or [_undecided(waits, lines)])


def _waits(evidence: Evidence) -> dict[int, Wait]:
    """The first timeout of each rank."""
    found: dict[int, Wait] = {}
    for hit in evidence.grep("collective operation timeout", _TIMEOUT):
        text, rank = hit.line.text, hit.line.rank
        sequence, operation = _SEQ.search(text), _OP.search(text)
        if rank is not None and rank not in found:
            found[rank] = Wait(rank, int(sequence[1]) if sequence else None,
                               operation[1] if operation else "", hit.line)
    return found


def _other_collective(evidence: Evidence, waits: dict[int, Wait]) -> list[Finding]:
    """Ranks in another collective than most, at the same place of the order: one of them left it."""
    operations = Counter(wait.operation for wait in waits.values() if wait.operation)
    if len(operations) < 2:
        return []
    usual = operations.most_common(1)[0][0]
    odd = [wait for wait in waits.values() if wait.operation and wait.operation != usual]
    own = [line for wait in odd for line in _own_errors(evidence, wait.rank)]
    who, those = ranks_in_words([wait.rank for wait in odd]), ranks_in_words(
        [rank for rank, wait in waits.items() if wait.operation == usual])
    lines = [*own, *(wait.line for wait in waits.values())]
    named = {wait.rank for wait in odd}
    waited = f"{those} wait in {usual}, {who} in {odd[0].operation}"
    if own:
        why = _in_short(own[0])
        return [Finding(
            "collective/swallowed-error", f"{who[0].upper()}{who[1:]} met an error of its own ({why}), went on "
                                          "and skipped a "
            f"collective that the others entered, so the collectives no longer match: {waited}. What was being "
            "written is incomplete.",
            _mend_of(own[0].text) + "Raise the failure on all ranks (all-reduce an ok flag before the barrier) "
                                    "and go on from "
            "the last complete checkpoint.", lines, INFERRED)]
    return [Finding(
        "collective/mismatch", f"The collectives of the ranks no longer match: {waited}. "
                               f"{who[0].upper()}{who[1:]} took "
        "another path through the program.",
        "Look for a branch that depends on rank or data around that place (checkpoint, evaluation, skipped batch); "
        f"TORCH_DISTRIBUTED_DEBUG=DETAIL names the call on {ranks_in_words(sorted(named))}.", lines, LIKELY)]


def _own_errors(evidence: Evidence, rank: int) -> list[Line]:
    """Errors that a rank wrote before its watchdog, other than that itself."""
    hits = evidence.grep(_named(rank), _OWN_ERROR)
    return [hit.line for hit in hits if hit.line.rank == rank and not _NOT_OWN.search(hit.line.text)]


def _named(rank: int) -> tuple[str, ...]:
    return f"rank {rank}", f"rank{rank}", f"rank={rank}", f"rank: {rank}"


def _in_short(line: Line) -> str:
    text = re.sub(r"^.*?(\b[\w.]*(?:Error|Exception)\b)", r"\1", line.text).strip()
    return text if len(text) <= 200 else f"{text[:200]}…"


def _mend_of(text: str) -> str:
    if re.search(r"SlowDown|503|reduce your request rate", text):
        return ("S3 answers SlowDown (503): use adaptive retries with fewer parallel writers, or spread the keys "
                "over prefixes. ")
    return ""


def _never_entered(evidence: Evidence, waits: dict[int, Wait]) -> list[Finding]:
    """A rank whose queue ends earlier than the others': it never entered what they wait in."""
    last: dict[int, tuple[int, Line]] = {}
    for hit in evidence.grep("last enqueued", _ENQUEUED):
        if hit.line.rank is not None:
            last.setdefault(hit.line.rank, (int(hit.match["last"]), hit.line))
    if len(last) < 2:
        absent = _named_as_missing(evidence)
        return [_missing(evidence, absent, waits, [])] if absent else []
    most = max(number for number, _ in last.values())
    behind = [rank for rank, (number, _) in last.items() if number < most]
    if not behind or len(behind) > len(last) / 2:
        return []
    return [_missing(evidence, behind, waits, [last[rank][1] for rank in behind])]


def _named_as_missing(evidence: Evidence) -> list[int]:
    """Ranks that a flight recorder's analysis or Gloo names as not arrived."""
    hits = evidence.grep(("missing rank", "did not join", "not yet joined", "never entered", "missing_ranks"),
                         r"(?:missing[_ ]ranks?|not (?:yet )?join\w*|never entered)\D{0,30}(?P<ranks>\d+(?:, "
                         r"?\d+)*)")
    return sorted({int(rank) for hit in hits for rank in re.findall(r"\d+", hit.match["ranks"])})


def _missing(evidence: Evidence, behind: list[int], waits: dict[int, Wait], queues: list[Line]) -> Finding:
    who = ranks_in_words(behind)
    waiting = ranks_in_words([rank for rank in waits if rank not in behind] or list(waits))
    operation = next((wait.operation.strip("_").lower() for wait in waits.values() if wait.operation), "collective")
    data = [hit.line for rank in behind for hit in evidence.grep(_named(rank), _SHORT_DATA)
            if hit.line.rank == rank]
    lines = [*data, *queues, *(wait.line for wait in waits.values())]
    if data:
        return Finding(
            "collective/uneven-batches", f"{who[0].upper()}{who[1:]} got fewer batches than the others "
                                         f"({data[0].text.strip()[:160]}"
            f"), left the loop and never entered the {operation} that {waiting} wait in.",
            "Give every rank the same number of batches: filter samples before they are sharded, drop_last with a "
            "common number of steps, or an all-reduced stop flag. Network and timeout are as they should "
            "be.", lines, INFERRED)
    own = [line for rank in behind for line in _own_errors(evidence, rank)]
    if own:
        return Finding(
            "collective/swallowed-error", f"{who[0].upper()}{who[1:]} met an error of its own "
                                          f"({_in_short(own[0])}) and never "
            f"entered the {operation} that {waiting} wait in.",
            f"{_mend_of(own[0].text)}Mend that error, and raise it on all ranks, so that none is left waiting.",
            [*own, *lines], INFERRED)
    return Finding(
        "collective/rank-missing", f"{who[0].upper()}{who[1:]} never entered the {operation} that {waiting} wait "
                                   "in, and what "
        "it did instead is not in these lines.",
        f"Collect the whole log and the stack of {who} (`py-spy dump` in its pod, flight recorder dump) and its "
        "node's conditions: it hangs, or took another path.", lines, LIKELY)


def _undecided(waits: dict[int, Wait], lines: list[Line]) -> Finding:
    who = ranks_in_words(list(waits))
    when = lines[0].moment
    at = f" around {when.seconds % 86400 // 3600:02d}:{when.seconds % 3600 // 60:02d}" if when else ""
    ran = _RAN.search(lines[0].text)
    minutes = f" for {int(ran[1]) / 60000:.0f} minutes" if ran else ""
    return Finding(
        "symptom/nccl-timeout", f"{who[0].upper()}{who[1:]} waited{minutes} in a collective{at}, and a rank that "
                                "waits cannot "
        "tell which peer did not come, or why.",
        "Collect every rank's log, the pods' exits and the nodes' conditions of the minutes before; for the next "
        "time set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with TORCH_NCCL_DUMP_ON_TIMEOUT=1 (the dump names the missing "
        "rank) and NCCL_DEBUG=WARN.", lines, SYMPTOM)
