"""Kubernetes objects and CloudFormation events as JSON or YAML, wherever they stand in a document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from ops.diagnose.evidence import Document, Event, Evidence, Node, Pod, StackEvent
from ops.diagnose.lines import Line, moment

_MOST_BYTES = 8 << 20
_YAML_START = re.compile(r"^(?:apiVersion|kind|items|metadata|spec|status):(?:\s|$)")
_JSON_START = re.compile(r"^\s{0,2}[\[{]")
_MOST_DEPTH = 60
_MOST_VAIN = 50
"""Brackets in one document that open no JSON, after which it is taken for something else."""
_TYPE_LABEL = "node.kubernetes.io/instance-type"
Object = Mapping[str, Any]


def add_objects(evidence: Evidence) -> None:
    """Take the objects out of all documents."""
    for document in evidence.documents:
        for value, line in _values(document):
            for found in _objects(value, 0):
                _take(evidence, found, line)


def _values(document: Document) -> Iterator[tuple[Any, Line]]:
    """Parsed JSON and YAML with the line that it begins in."""
    rows = document.rows
    if sum(map(len, rows[:200_000])) > _MOST_BYTES:
        return
    index, vain = 0, 0
    while index < len(rows):
        row = rows[index]
        if _JSON_START.match(row) and vain < _MOST_VAIN:
            value, used = _json(rows, index)
            vain += not used and row.strip() in ("{", "[")
            if used:
                yield value, document.line(index)
                index += used
                continue
        elif _YAML_START.match(row):
            end = next((i for i in range(index + 1, len(rows)) if rows[i].startswith(("$ ", "---"))), len(rows))
            for value in _yaml(rows[index:end]):
                yield value, document.line(index)
            index = end
            continue
        index += 1


def _json(rows: Any, index: int) -> tuple[Any, int]:
    """A JSON value that begins in a row, and how many rows it takes; 0 for none."""
    row = rows[index].lstrip()
    try:
        return json.loads(row), 1
    except (ValueError, RecursionError):
        pass
    depth = 0
    for end in range(index, len(rows)):
        line = re.sub(r'"(?:[^"\\]|\\.)*"', '""', rows[end])
        depth += line.count("{") + line.count("[") - line.count("}") - line.count("]")
        if depth <= 0 or (end > index and rows[end].startswith("$ ")):
            try:
                return json.loads("\n".join(rows[index:end + 1])), end + 1 - index
            except (ValueError, RecursionError):
                return None, 0
    return None, 0


def _yaml(rows: Sequence[str]) -> list[Any]:
    """A YAML document, also one that was cut in its last lines; nothing for one with aliases, which kubectl never
    writes.
    """
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for cut in (0, 1, 2, 5):
        text = "\n".join(rows[:len(rows) - cut])
        try:
            depth = 0
            for event in yaml.parse(text, Loader=loader):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if isinstance(event, yaml.AliasEvent) or depth > _MOST_DEPTH:
                    return []
            return [value for value in yaml.load_all(text, Loader=loader) if value is not None]
        except (yaml.YAMLError, ValueError, RecursionError):
            continue
    return []


def _objects(value: Any, depth: int) -> Iterator[Object]:
    """Whatever mapping may be an object: items of lists, and lists within answers of the AWS CLI."""
    if depth > 4:
        return
    if isinstance(value, list):
        for each in value:
            yield from _objects(each, depth + 1)
    elif isinstance(value, dict):
        yield value
        for name in ("items", "StackEvents", "nodegroup", "NodeGroup"):
            if isinstance(value.get(name), list | dict):
                yield from _objects(value[name], depth + 1)


def _take(evidence: Evidence, found: Object, line: Line) -> None:
    evidence.objects.append((found, line))
    kind = str(found.get("kind", ""))
    metadata = found.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, dict) else ""
    if kind == "Event" or ("involvedObject" in found and "reason" in found):
        evidence.events.append(_event(found, line))
    elif kind == "Node" and name:
        evidence.nodes[name] = _node(found, name, line)
    elif kind == "Pod" and name:
        evidence.pods[name] = _pod(found, name, line)
    elif "ResourceStatus" in found and "LogicalResourceId" in found:
        evidence.stack_events.append(StackEvent(
            str(found["ResourceStatus"]), str(found.get("ResourceType", "")), str(found["LogicalResourceId"]),
            str(found.get("ResourceStatusReason", "")), _found_in(evidence, line, found, "ResourceStatusReason")))


def _event(found: Object, line: Line) -> Event:
    about = _mapping(found, "involvedObject") or _mapping(found, "regarding")
    message = str(found.get("message") or found.get("note") or "")
    first, last = (moment(str(found.get(key))) for key in ("firstTimestamp", "lastTimestamp"))
    since = int((last.minutes_after(first) or 0) * 60) if first and last else None
    at = str(found.get("lastTimestamp") or found.get("eventTime") or "")
    shown = Line(line.source, line.number, f"{at} {found.get('type', '')} {found.get('reason', '')} "
                 f"{str(about.get('kind', '')).lower()}/{about.get('name', '')} {message}")
    return Event(str(found.get("reason", "")), f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
                 message, shown, found.get("type") == "Warning", None, since)


def _node(found: Object, name: str, line: Line) -> Node:
    labels, status = _mapping(_mapping(found, "metadata"), "labels"), _mapping(found, "status")
    taints = _mapping(found, "spec").get("taints") or []
    allocatable = _mapping(status, "allocatable")
    return Node(
        name, line, str(labels.get(_TYPE_LABEL, "")),
        [f"{t.get('key')}={t.get('value', '')}:{t.get('effect')}" for t in taints if isinstance(t, dict)],
        {key: str(value) for key, value in labels.items()},
        {key: str(value) for key, value in allocatable.items()} or None,
        {str(c.get("type")): str(c.get("status")) for c in status.get("conditions") or [] if isinstance(c, dict)})


def _pod(found: Object, name: str, line: Line) -> Pod:
    spec = _mapping(found, "spec")
    requests: dict[str, str] = {}
    for container in spec.get("containers") or []:
        if isinstance(container, dict):
            resources = _mapping(container, "resources")
            requests.update({key: str(value) for part in ("requests", "limits")
                             for key, value in _mapping(resources, part).items()})
    selector = {key: str(value) for key, value in _mapping(spec, "nodeSelector").items()}
    return Pod(name, line, str(_mapping(found, "status").get("phase", "")), requests, selector)


def _mapping(found: Object, key: str) -> dict[str, Any]:
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def _found_in(evidence: Evidence, line: Line, found: Object, key: str) -> Line:
    """The line of the document that holds the value, for the quote; else a line made of the value."""
    text = str(found.get(key) or "")
    document = evidence.document(line.source)
    for index in document.holding(text[:40].lower()) if document and len(text) > 10 else ():
        return document.line(index) if document else line
    return Line(line.source, line.number, f"{found.get('LogicalResourceId')} {found.get('ResourceStatus')} {text}")
