"""A cause with its fix and the lines it was judged by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ops.diagnose.evidence import Evidence, Hit
from ops.diagnose.lines import Line

# How sure a finding is.
STATED = 0.95
"""A line states the cause itself."""
INFERRED = 0.8
"""Several lines together leave this one cause."""
LIKELY = 0.6
"""The lines fit this cause better than any other."""
SYMPTOM = 0.3
"""Something went wrong here, and why stands elsewhere: alone it makes `unknown`."""

_MOST_LINES = 6


@dataclass(frozen=True)
class Finding:
    """`kind` is area/name; its area orders causes and consequences (judge.py). `evidence` is quoted, first first.

    `consequences` are the kinds of other findings that this one explains.
    """

    kind: str
    cause: str
    fix: str
    evidence: Sequence[Line]
    confidence: float
    consequences: Sequence[str] = ()

    @property
    def area(self) -> str:
        return self.kind.split("/")[0]

    def quoted(self) -> list[dict[str, Any]]:
        """The lines, with where they stand."""
        return [{"source": line.source, "line": line.number, "text": line.quote}
                for line in self.evidence[:_MOST_LINES]]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for json.dumps."""
        return {"cause": self.cause, "fix": self.fix, "evidence": self.quoted(), "confidence": self.confidence,
                "kind": self.kind, "consequences": list(self.consequences)}

    def explaining(self, others: Sequence[Finding]) -> Finding:
        """With those others as its consequences."""
        return replace(self, consequences=[other.kind for other in others])


@dataclass(frozen=True)
class Signature:
    """A fault whose line states it. `words`: lower case, one of them is in the line; cheap to look for.

    `cause` and `fix` are templates: {name} is a named group of the pattern, or of `extra` (looked for in the
    whole evidence), or its words in `default`.
    """

    kind: str
    words: Sequence[str]
    pattern: str
    cause: str
    fix: str
    confidence: float = STATED
    unless: str = ""
    default: Mapping[str, str] = field(default_factory=dict)
    least: int = 1

    def findings(self, evidence: Evidence) -> list[Finding]:
        """At most one finding: of the first line, with the next ones as evidence."""
        hits = [hit for hit in evidence.grep(self.words, self.pattern)
                if not (self.unless and re.search(self.unless, hit.line.text, re.IGNORECASE))]
        if len(hits) < self.least:
            return []
        return [Finding(self.kind, said(self.cause, hits, self.default), said(self.fix, hits, self.default),
                        [hit.line for hit in hits], self.confidence)]


class _Words(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "?"


def said(template: str, hits: Sequence[Hit], default: Mapping[str, str] | None = None) -> str:
    """A template with the named groups of the hits (of each the first that has it); {who} says rank and place."""
    values = _Words(default or {})
    for hit in reversed(hits):
        values.update({name: value.strip(" .,;:'\"") for name, value in hit.match.groupdict().items() if value})
    values["who"] = who(hits[0].line)
    return template.format_map(values)


def who(line: Line) -> str:
    """`rank 6 on 10.0.1.41`, as far as a line tells."""
    rank = f"rank {line.rank}" if line.rank is not None else ""
    place = line.place or _named_pod(line)
    return " on ".join(part for part in (rank, place) if part) or "a process"


def _named_pod(line: Line) -> str:
    found = re.search(r"\b(?:pod|node)/([\w.-]+)", line.raw)
    return found[1] if found else ""


def ranks_in_words(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0, 2 and 3`, `ranks 0, 1, 2, … (16 of them)`."""
    known = sorted(set(ranks))
    if len(known) == 1:
        return f"rank {known[0]}"
    if len(known) > 8:
        return f"ranks {', '.join(map(str, known[:3]))}, … ({len(known)} of them)"
    return f"ranks {', '.join(map(str, known[:-1]))} and {known[-1]}"
