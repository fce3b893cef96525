"""From findings to a diagnosis: causes before consequences, the first failure before the loudest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cmp_to_key
from typing import Any, Literal

from ops.diagnose import health
from ops.diagnose.evidence import Document, Evidence
from ops.diagnose.finding import LIKELY, SYMPTOM, Finding
from ops.diagnose.lines import Moment
from ops.diagnose.objects import add_objects
from ops.diagnose.rules import RULES
from ops.diagnose.tables import add_tables

_DEATHS = ("wire/efa_peer_lost", "wire/ports-blocked", "collective/rank-missing", "collective/mismatch",
           "ray/gcs-lost", "ray/deadline*", "trainer/exception")
# What a cause brings about, as patterns of kinds. Every cause explains every symptom besides.
_EXPLAINS: Sequence[tuple[str, Sequence[str]]] = (
    ("capacity/reservation-outside-group", ("capacity/insufficient",)),
    ("capacity/*", ("schedule/*", "stack/*", "ray/deadline*", "ray/infeasible")),
    ("schedule/huge-pages", ("wire/huge_pages",)),
    ("schedule/*", ("ray/deadline*", "ray/infeasible", "ray/no-gpu", "stack/helm-timeout",
                    "wire/no_eligible_provider")),
    ("storage/spill-fills-disk", ("node/disk-pressure", "storage/*", *_DEATHS)),
    ("node/system-oom", ("pod/oom-killed", "ray/memory-monitor", "node/memory-pressure", *_DEATHS)),
    ("node/ecc", ("node/program-xid", "node/gpu-lost", "trainer/illegal-access", *_DEATHS)),
    ("node/no-addresses", ("node/cni",)),
    ("node/*", ("ray/submitter-no-head", *_DEATHS)),
    ("pod/shared-memory", ("storage/no-space",)),
    ("pod/nvml-without-gpu", ("ray/no-gpu", "ray/submitter-no-head")),
    ("pod/*", ("ray/submitter-no-head", "stack/helm-timeout", *_DEATHS)),
    ("collective/swallowed-error", ("storage/*", "data/*", "trainer/exception", "wire/efa_peer_lost")),
    ("collective/*", ("wire/efa_peer_lost", "trainer/exception")),
    ("data/hub-rate-limit", ("data/*", "trainer/exception", *_DEATHS)),
    ("data/*", ("trainer/exception", "trainer/refused", *_DEATHS)),
    ("storage/no-credentials", ("stack/credentials",)),
    ("storage/*", ("trainer/exception", "stack/access-denied", *_DEATHS)),
    ("trainer/illegal-access", ("node/program-xid", "trainer/exception", *_DEATHS)),
    ("trainer/device-assert", ("node/program-xid", "trainer/exception", *_DEATHS)),
    ("trainer/*", ("wire/efa_peer_lost", "collective/rank-missing", "collective/mismatch")),
    ("wire/pod_identity_nic", ("wire/ports-blocked", "wire/socket_network")),
    ("wire/no_eligible_provider", ("wire/socket_network", "wire/network_not_found", "wire/plugin_init_failed")),
    ("wire/plugin_*", ("wire/socket_network", "wire/network_not_found", "wire/no_eligible_provider")),
    ("wire/*", ("trainer/refused", "trainer/exception", "wire/efa_request_failed")),
    ("ray/memory-monitor", ("pod/oom-killed", *_DEATHS)),
    ("ray/validation", ("ray/deadline*",)),
    ("teardown/*", ("stack/resource-failed", "stack/export-in-use")),
    ("stack/*", ("stack/resource-failed",)),
)
_NOT_LATER = 2.0
"""Minutes that a cause may be seen after what it brings about: clocks differ, and a kill is reported late."""
# Troubles that may pass by themselves: once what they held up went on they are no fault.
_PASSING = ("storage/slow-down", "data/hub-*", "data/dns", "wire/ports-blocked", "symptom/*", "ray/gcs-lost")
_PASSING_OF_PODS = ("schedule/*", "symptom/pending", "pod/image-*", "pod/probe", "symptom/crash-loop",
                    "pod/volume-mount")

Verdict = Literal["fault", "healthy", "unknown"]


@dataclass(frozen=True)
class Diagnosis:
    """The verdict and its findings, most likely first; those of `healthy` and `unknown` say what was seen."""

    verdict: Verdict
    findings: Sequence[Finding]

    def to_json(self) -> dict[str, Any]:
        """Plain values, for json.dumps."""
        return {"verdict": self.verdict, "findings": [finding.to_json() for finding in self.findings]}


def diagnose(documents: Sequence[Document]) -> Diagnosis:
    """Judge what was given."""
    evidence = Evidence(documents)
    add_tables(evidence)
    add_objects(evidence)
    found = [finding for rule in RULES for finding in rule(evidence)]
    lasting = [finding for finding in _once(found) if not _passed(evidence, finding)]
    causes = [finding for finding in lasting if finding.confidence >= LIKELY]
    symptoms = [finding for finding in lasting if finding.confidence < LIKELY]
    if causes:
        return Diagnosis("fault", _ordered(causes, symptoms))
    seen = health.signs(evidence)
    if symptoms:
        return Diagnosis("unknown", [_unknown(finding) for finding in sorted(symptoms, key=_by_time)])
    accounted = {(line.source, line.number) for finding in found for line in finding.evidence}
    return _well_or_unknown(evidence, seen, accounted)


def _well_or_unknown(evidence: Evidence, seen: list[health.Sign], accounted: set[tuple[str, int]]) -> Diagnosis:
    alarms = health.alarms(evidence, accounted)
    late = [sign for sign in seen if sign.late]
    if alarms:
        return Diagnosis("unknown", [Finding(
            "symptom/unrecognised", "unknown: these lines speak of a failure, and no rule knows its cause.",
            "Collect what stands around them: the logs of all ranks, `kubectl get events -A`, `kubectl describe` "
            "of the pods and nodes.", alarms, SYMPTOM)])
    if late:
        return Diagnosis("unknown", [Finding(
            "symptom/slow",
            f"unknown: {late[0].text}, but it has taken {late[0].minutes:.0f} minutes, longer than is usual.",
            "Collect the events of what it waits for (`kubectl get events -A`, `kubectl describe pod`, the stack's "
            "newest events).", late[0].lines, SYMPTOM)])
    if seen:
        lines = [line for sign in seen for line in sign.lines[-2:]]
        return Diagnosis("healthy", [Finding(
            "none", "none", f"Nothing wrong: {'; '.join(dict.fromkeys(sign.text for sign in seen))}. "
            "Look again in some minutes if it does not go on.", lines, 0.9)])
    return Diagnosis("unknown", [Finding(
        "symptom/nothing-told", "unknown: nothing in this evidence tells of a fault or of its absence.",
        "Collect the logs of all ranks, `kubectl get events -A`, `kubectl describe pods,nodes` and the RayJob's "
        "status.", [], SYMPTOM)])


def _once(found: Sequence[Finding]) -> list[Finding]:
    kept: dict[str, Finding] = {}
    for finding in found:
        kept.setdefault(finding.kind, finding)
    return list(kept.values())


def _passed(evidence: Evidence, finding: Finding) -> bool:
    """Whether what a passing trouble held up went on afterwards."""
    if not finding.evidence:
        return False
    if any(fnmatch(finding.kind, kind) for kind in _PASSING) and health.went_on(evidence, _last(finding)):
        return True
    return any(fnmatch(finding.kind, kind) for kind in _PASSING_OF_PODS) and _pod_went_on(evidence, finding)


def _pod_went_on(evidence: Evidence, finding: Finding) -> bool:
    """Whether its pods were started in the end, or wait for a scale-up under way."""
    told = {(line.source, line.number) for line in finding.evidence}
    events = [event for event in evidence.events if (event.line.source, event.line.number) in told]
    subjects = {event.subject for event in events}
    if not subjects:
        return False
    last = max(told)
    after = {event.subject for event in evidence.events if event.reason in ("Started", "Scheduled", "Pulled")
             and (event.line.source, event.line.number) > last}
    waiting = {event.subject for event in evidence.events if event.reason == "TriggeredScaleUp"}
    failed = any(event.reason in ("NotTriggerScaleUp", "FailedToScaleUpGroup") for event in evidence.events)
    started = after if not finding.kind.startswith("pod/") else {
        event.subject for event in evidence.events if event.reason in ("Started", "Pulled")
        and (event.line.source, event.line.number) > last}
    comes = finding.kind == "symptom/pending" and subjects <= (waiting | after) and not failed
    return subjects <= started or comes


def _last(finding: Finding) -> Any:
    return max(finding.evidence, key=lambda line: (line.source, line.number))


def _ordered(causes: Sequence[Finding], symptoms: Sequence[Finding]) -> list[Finding]:
    """Causes that nothing else explains, each with what it explains; the earliest first."""
    caused = {finding.kind: [other for other in causes if other is not finding and _explains(finding, other)]
              for finding in causes}
    explained = {other.kind for others in caused.values() for other in others}
    first = [finding for finding in causes if finding.kind not in explained] or list(causes[:1])
    first.sort(key=cmp_to_key(_before))
    told = [first[0].explaining([*caused[first[0].kind], *symptoms])]
    return [*told, *(finding.explaining(caused[finding.kind]) for finding in first[1:])]


def _explains(cause: Finding, other: Finding) -> bool:
    kinds = next((kinds for pattern, kinds in _EXPLAINS if fnmatch(cause.kind, pattern)
                  and any(fnmatch(other.kind, kind) for kind in kinds)), None)
    if kinds is None or _explained_back(cause, other):
        return False
    began, seen = _moment(cause), _moment(other)
    between = began.minutes_after(seen) if began and seen else None
    return between is None or between <= _NOT_LATER


def _explained_back(cause: Finding, other: Finding) -> bool:
    """Two kinds whose patterns explain each other: the one that stands first in the table counts."""
    def place(a: Finding, b: Finding) -> int:
        return next((i for i, (pattern, kinds) in enumerate(_EXPLAINS) if fnmatch(a.kind, pattern)
                     and any(fnmatch(b.kind, kind) for kind in kinds)), len(_EXPLAINS))
    return place(other, cause) < place(cause, other)


def _before(a: Finding, b: Finding) -> int:
    at, bt = _moment(a), _moment(b)
    between = at.minutes_after(bt) if at and bt else None
    if between is not None and abs(between) > 1:
        return -1 if between < 0 else 1
    return -1 if a.confidence > b.confidence else 1 if a.confidence < b.confidence else 0


def _moment(finding: Finding) -> Moment | None:
    return next((found for line in finding.evidence if (found := line.moment)), None)


def _by_time(finding: Finding) -> tuple[int, str]:
    found = _moment(finding)
    return (found.seconds if found else 1 << 40, finding.kind)


def _unknown(finding: Finding) -> Finding:
    return replace(finding, cause=f"unknown: {finding.cause}")
