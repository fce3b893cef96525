"""A survey for a person: what was found, what to do, and where to deploy."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from ops.preflight.finding import Finding, Status
from ops.preflight.report import Candidate, RegionReport, Survey

_COLOUR: dict[Status, str] = {"ok": "green", "note": "cyan", "unknown": "yellow", "failed": "red"}
_READY: dict[Status, str] = {"ok": "ready", "note": "ready", "unknown": "open", "failed": "no"}
_CHECK_WIDTH = 11
_INDENT = " " * 22
# With more regions than this, a region is told in a line or two.
_IN_FULL = 2
_LISTED = 6


def show_survey(console: Console, survey: Survey, needs: str) -> None:
    """Print it; `needs` says what was asked for, such as `2 x g6.12xlarge (on-demand), 1 x m7i.xlarge`."""
    console.print(f"[bold]{escape(needs)}[/] in account {survey.account}", highlight=False, soft_wrap=True)
    for finding in survey.shared:
        show_finding(console, finding)
    in_full = len(survey.reports) <= _IN_FULL
    for report in survey.reports:
        (_region if in_full else _region_in_short)(console, report, survey.shared)
    console.print()
    for line in verdict_lines(survey):
        console.print(escape(line), highlight=False, soft_wrap=True)


def _region(console: Console, report: RegionReport, shared: Sequence[Finding]) -> None:
    console.print(f"\n[bold]{report.region}[/]", highlight=False)
    for finding in report.findings:
        # What hinders one zone is told beside the zone, what is in order there is not told.
        if finding not in shared and (finding.zone is None or finding.status == "note"):
            show_finding(console, finding)
    for candidate in report.candidates():
        _zone(console, report, candidate)


def _region_in_short(console: Console, report: RegionReport, shared: Sequence[Finding]) -> None:
    """Its ready zones, or what all of them lack."""
    found = report.candidates()
    status = found[0].status if found else "failed"
    zones = [c.zone for c in found if c.status == status]
    obstacles = [f for f in report.findings
                 if f.status == status and f not in shared and f.zone in (None, *zones[:1])]
    text = ", ".join(zones) if status == "ok" else "; ".join(f"{f.check}: {f.text}" for f in obstacles)
    _columns(console, status, _READY[status], text, report.region)
    for finding in obstacles if status == "failed" else ():
        _fix(console, finding)


def _zone(console: Console, report: RegionReport, candidate: Candidate) -> None:
    zone_id = next((z.id for z in report.zones if z.name == candidate.zone), "")
    status = candidate.status
    own = [f for f in report.findings if f.zone == candidate.zone and f.status in ("failed", "unknown")]
    why = "; ".join(f.text for f in own)
    if not why and not candidate.second_zone:
        why = "the control plane needs a second zone, and there is none"
    elif not why and status != "ok":
        why = "as the region"
    name = f"{candidate.zone} {zone_id}".strip()
    _columns(console, status, _READY[status], f"{name}: {why}" if why else name, "zone")
    for finding in own:
        _fix(console, finding)


def show_finding(console: Console, finding: Finding) -> None:
    """One finding, and under it what to do: never broken over lines, so that it can be copied."""
    _columns(console, finding.status, finding.status, finding.text, finding.check)
    _fix(console, finding)


def _columns(console: Console, status: Status, word: str, text: str, check: str) -> None:
    width = max(console.width - len(_INDENT) - max(len(check) + 1 - _CHECK_WIDTH, 0), 30)
    first, *rest = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    check = f"{check} " if len(check) >= _CHECK_WIDTH else f"{check:<{_CHECK_WIDTH}}"
    console.print(f"  [{_COLOUR[status]}]{word:<8}[/] {check}{escape(first)}", highlight=False, soft_wrap=True)
    for line in rest:
        console.print(_INDENT + escape(line), highlight=False, soft_wrap=True)


def _fix(console: Console, finding: Finding) -> None:
    if finding.fix:
        console.print(f"{_INDENT}→ {escape(finding.fix)}", highlight=False, soft_wrap=True)


def verdict_lines(survey: Survey) -> list[str]:
    """Where to deploy, or why not."""
    chosen = survey.verdict
    elsewhere = [c for c in survey.candidates if c.status == "ok" and c != chosen]
    if chosen is None:
        return ["No zone to deploy to."]
    if chosen.status == "ok":
        lines = [f"Ready: {chosen.zone} (second zone {chosen.second_zone})."]
        return lines + ([f"Then: {_listed(elsewhere)}."] if elsewhere else [])
    word = "Not ready" if chosen.status == "failed" else "Not known whether ready"
    lines = [f"{word}: {chosen.zone}."]
    if elsewhere and survey.deciding:
        lines.append(f"Ready: {_listed(elsewhere)}. To deploy there: eagleray up --azs {elsewhere[0].zone}")
    return lines


def _listed(candidates: Sequence[Candidate]) -> str:
    more = len(candidates) - _LISTED
    return ", ".join(c.zone for c in candidates[:_LISTED]) + (f" and {more} more" if more > 0 else "")
