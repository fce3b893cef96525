"""What kubectl, cdk and the AWS CLI print for people: tables and descriptions, in any mix."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ops.diagnose.evidence import DaemonSet, Document, Event, Evidence, Node, Pod, StackEvent
from ops.diagnose.lines import Line, age_seconds

_EVENT = re.compile(
    r"^(?:[\w-]+\s+)?(?P<age>(?:\d+[dhms])+(?: \(x\d+(?: over [\w ]+)?\))?|<unknown>)\s+(?P<type>Normal|Warning)\s+"
    r"(?P<reason>[A-Z]\w+)\s+(?P<subject>[a-z][\w.]*/\S+)\s+(?P<message>.*)$")
_DESCRIBED = re.compile(
    r"^\s{1,6}(?P<type>Normal|Warning)\s+(?P<reason>[A-Z]\w+)\s+"
    r"(?P<age>(?:(?:\d+[dhms])+|<\w+>)(?: \(x\d+(?: over (?P<since>\w+))?\))?)\s+(?P<from>[\w.,/ -]*?\S)?\s{1,}"
    r"(?P<message>\S.*)$")
_STACK = re.compile(
    r"\b(?P<status>(?:CREATE|UPDATE|DELETE|ROLLBACK|UPDATE_ROLLBACK|IMPORT)(?:_ROLLBACK)?_(?:IN_PROGRESS|COMPLETE|"
    r"FAILED)\w*)\s*\|?\s*(?P<type>(?:AWS|Custom)::[\w:-]+)\s*\|?\s*(?P<rest>.*)$")
_LOGICAL = re.compile(r"\((?P<id>\w+)\)|^\s*(?P<first>[\w/.-]+)")
_DAEMON_SET = re.compile(r"^(?:[\w-]+\s+)?(?P<name>[a-z][\w.-]+)\s+(?P<desired>\d+)\s+(?P<current>\d+)\s+"
                         r"(?P<ready>\d+)\s+(?P<rest>\d+\s+\d+\s+.*)$")
_FIELD = re.compile(r"^(?P<name>[A-Z][\w -]*):\s*(?P<value>.*)$")
_VALUE = re.compile(r"^\s+(?P<name>[\w./-]+):\s+(?P<value>\S+)\s*$")
_TYPE_LABEL = "instance-type="
_CONDITION = re.compile(r"^\s+(?P<type>\w+)\s+(?P<status>True|False|Unknown)\s")


def add_tables(evidence: Evidence) -> None:
    """Take the rows and descriptions out of all documents."""
    for document in evidence.documents:
        if not any(True for word in ("::", "normal", "warning", "name", "desired") for _ in document.holding(word)):
            continue
        _rows(evidence, document)
        _descriptions(evidence, document)
        _columns(evidence, document)


def _rows(evidence: Evidence, document: Document) -> None:
    for index in _candidates(document, (" normal ", " warning ")):
        line = document.line(index)
        if (found := _EVENT.match(line.raw)) and not line.is_note:
            evidence.events.append(Event(
                found["reason"], found["subject"], found["message"], line, found["type"] == "Warning",
                age_seconds(found["age"]), age_seconds(found["age"].partition("over ")[2])))
    for index in _candidates(document, ("_in_progress", "_complete", "_failed")):
        line = document.line(index)
        if (found := _STACK.search(line.raw)) and not line.is_note:
            rest = found["rest"]
            named = _LOGICAL.search(rest)
            evidence.stack_events.append(StackEvent(
                found["status"], found["type"], (named["id"] or named["first"] or "") if named else "", rest, line))


def _candidates(document: Document, words: tuple[str, ...]) -> list[int]:
    return sorted({index for word in words for index in document.holding(word)})


def _descriptions(evidence: Evidence, document: Document) -> None:
    """`kubectl describe` of pods and nodes: fields, blocks of resources, and their events."""
    starts = [i for i in document.holding("name:") if document.rows[i].startswith("Name:")]
    ends = [*starts[1:], len(document)]
    for start, end in zip(starts, ends, strict=False):
        end = next((i for i in range(start + 1, end) if document.rows[i].startswith("$ ")), end)
        lines = [document.line(i) for i in range(start, min(end, start + 2000))]
        _described(evidence, lines)
    for index in _candidates(document, (" normal ", " warning ")):
        line = document.line(index)
        if found := _DESCRIBED.match(line.raw):
            before = [i for i in starts if i < index]
            subject = document.rows[before[-1]].split(":", 1)[1].strip() if before else ""
            evidence.events.append(Event(
                found["reason"], f"pod/{subject}" if subject in evidence.pods else f"node/{subject}",
                f"{found['from'] or ''} {found['message']}".strip(), line, found["type"] == "Warning",
                age_seconds(found["age"]), age_seconds(found["since"] or "")))


def _described(evidence: Evidence, lines: list[Line]) -> None:
    name = lines[0].raw.split(":", 1)[1].strip()
    fields = {found["name"]: found["value"] for line in lines if (found := _FIELD.match(line.raw))}
    if "Namespace" in fields:
        requests = dict(_block(lines, r"^\s+(?:Limits|Requests):"))
        selector = dict(pair.split("=", 1) for pair in fields.get("Node-Selectors", "").split() if "=" in pair)
        evidence.pods[name] = Pod(name, lines[0], fields.get("Status", ""), requests, selector)
        return
    labels = dict(pair.split("=", 1) for line in _items(lines, "Labels") for pair in [line] if "=" in pair)
    if not {"Taints", "Conditions", "Capacity", "Allocatable"} & fields.keys():
        return
    shown = "Allocatable" in fields
    evidence.nodes[name] = Node(
        name, lines[0], next((v for k, v in labels.items() if k.endswith("instance-type")), ""),
        [taint for taint in _items(lines, "Taints") if ":" in taint], labels,
        dict(_block(lines, r"^Allocatable:")) if shown else None,
        {found["type"]: found["status"] for line in lines if (found := _CONDITION.match(line.raw))})


def _items(lines: list[Line], name: str) -> Iterator[str]:
    """The values of a field that goes on in further, indented lines."""
    inside = False
    for line in lines:
        if found := _FIELD.match(line.raw):
            inside = found["name"] == name
            if inside and found["value"]:
                yield found["value"].strip()
        elif inside and line.raw.startswith(" " * 8):
            yield line.raw.strip()


def _block(lines: list[Line], header: str) -> Iterator[tuple[str, str]]:
    """`name: value` lines below a header, deeper than it."""
    depth: int | None = None
    for line in lines:
        if re.match(header, line.raw):
            depth = len(line.raw) - len(line.raw.lstrip())
            inline = re.match(r"^\s*\w+:\s+([\w./-]+):\s+(\S+)\s*$", line.raw)
            if inline:
                yield inline[1], inline[2]
            continue
        if depth is None:
            continue
        indent = len(line.raw) - len(line.raw.lstrip())
        if indent <= depth:
            depth = None
        elif found := _VALUE.match(line.raw):
            yield found["name"], found["value"]


def _columns(evidence: Evidence, document: Document) -> None:
    """Daemon sets, and nodes with their GPUs and EFA interfaces as columns."""
    header: list[str] = []
    instance_type = ""
    for index, row in enumerate(document.rows):
        if row.startswith("$ "):
            header = []
            command = re.search(r"instance-type=([\w.-]+)", row)
            instance_type = command[1] if command else ""
            continue
        cells = row.split()
        if len(cells) > 1 and all(cell.upper() == cell and not cell[0].isdigit() for cell in cells[:3]):
            header = cells
            continue
        if "DESIRED" in header and (found := _DAEMON_SET.match(row)):
            evidence.daemon_sets.append(DaemonSet(found["name"], int(found["desired"]), int(found["ready"]),
                                                  document.line(index)))
        elif {"GPU", "EFA"} & set(header) and len(cells) == len(header):
            _node_row(evidence, dict(zip(header, cells, strict=True)), document.line(index), instance_type)


def _node_row(evidence: Evidence, cells: dict[str, str], line: Line, instance_type: str) -> None:
    name = next(iter(cells.values()))
    node = evidence.nodes.setdefault(name, Node(name, line, instance_type))
    node.instance_type = node.instance_type or cells.get("TYPE", "") or instance_type
    offered = node.allocatable = node.allocatable or {}
    for column, resource in (("GPU", "nvidia.com/gpu"), ("EFA", "vpc.amazonaws.com/efa")):
        if column in cells:
            offered.setdefault(resource, cells[column].replace("<none>", "0"))
