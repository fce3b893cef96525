"""What was given: documents of numbered lines, and the objects and events that stand in them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ops.diagnose.lines import Line

_MOST_HITS = 2000


class Document:
    """One file, or part of an archive: its lines with their numbers, lines that were left out missing."""

    def __init__(self, name: str, lines: Sequence[str], numbers: Sequence[int] | None = None) -> None:
        self.name = name
        self.rows = lines
        self._numbers = numbers
        text = "\n".join(lines)
        # only ASCII changes its case, so that a position in one is a position in the other
        self._lower = text.encode(errors="replace").lower().decode()

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for row in self.rows:
            starts.append(at)
            at += len(row) + 1
        return starts

    def __len__(self) -> int:
        return len(self.rows)

    def line(self, index: int) -> Line:
        return Line(self.name, self._numbers[index] if self._numbers else index + 1, self.rows[index])

    def lines(self) -> Iterator[Line]:
        return (self.line(index) for index in range(len(self.rows)))

    def holding(self, word: str) -> Iterator[int]:
        """Indices of the lines with a lower-case word, each once, in order."""
        at = self._lower.find(word)
        while at >= 0:
            index = bisect_right(self._starts, at) - 1
            yield index
            if index + 1 >= len(self._starts):
                return
            at = self._lower.find(word, self._starts[index + 1])


class Hit(NamedTuple):
    """A line that a pattern matched."""

    line: Line
    match: re.Match[str]
    document: Document
    at: int  # its index in the document


@dataclass(frozen=True)
class Event:
    """A Kubernetes event. `age` in seconds before the list was made, `since` of its first; None where untold."""

    reason: str
    subject: str  # pod/name
    message: str
    line: Line
    warning: bool = False
    age: int | None = None
    since: int | None = None


@dataclass(frozen=True)
class StackEvent:
    """One event of a CloudFormation stack."""

    status: str
    type: str
    resource: str
    reason: str
    line: Line


@dataclass
class Node:
    """A node as far as it was shown; `allocatable` holds what was seen, None for one that shows no list."""

    name: str
    line: Line
    instance_type: str = ""
    taints: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] | None = None
    conditions: dict[str, str] = field(default_factory=dict)

    def count(self, resource: str) -> int | None:
        """How many of an extended resource it offers; None where its list was not shown, or only in part."""
        if self.allocatable is None or (resource not in self.allocatable and "cpu" not in self.allocatable):
            return None
        value = self.allocatable.get(resource, "0")
        return int(value) if value.isdigit() else 0


@dataclass
class Pod:
    """A pod as far as it was shown."""

    name: str
    line: Line
    phase: str = ""
    requests: dict[str, str] = field(default_factory=dict)
    selector: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DaemonSet:
    """A row of `kubectl get daemonset`."""

    name: str
    desired: int
    ready: int
    line: Line


class Evidence:
    """All that was given. Rules ask it; they change nothing."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.events: list[Event] = []
        self.stack_events: list[StackEvent] = []
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.daemon_sets: list[DaemonSet] = []
        self.objects: list[tuple[Mapping[str, Any], Line]] = []

    def document(self, name: str) -> Document | None:
        """The first document of that name."""
        return next((document for document in self.documents if document.name == name), None)

    def grep(self, words: str | Iterable[str], pattern: str | re.Pattern[str], notes: bool = False) -> list[Hit]:
        """Lines with one of the lower-case words that match, in order; remarks and commands only with `notes`."""
        compiled = re.compile(pattern, re.IGNORECASE) if isinstance(pattern, str) else pattern
        found = []
        for document in self.documents:
            indices = {index for word in ([words] if isinstance(words, str) else words)
                       for index in document.holding(word)}
            for index in sorted(indices):
                line = document.line(index)
                if line.is_note and not notes:
                    continue
                match = compiled.search(line.text)
                if match:
                    found.append(Hit(line, match, document, index))
                    if len(found) >= _MOST_HITS:
                        return found
        return found

    def has(self, words: str | Iterable[str], pattern: str, notes: bool = False) -> bool:
        """Whether a line matches; see `grep`."""
        return bool(self.grep(words, pattern, notes))

    def around(self, hit: Hit, before: int = 20, after: int = 5) -> list[Line]:
        """The lines next to a hit in its document."""
        first, last = max(0, hit.at - before), min(len(hit.document), hit.at + after + 1)
        return [hit.document.line(index) for index in range(first, last)]
