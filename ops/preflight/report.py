"""What the findings of a region mean: which zones are ready, and in which order to try them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ops.preflight.finding import Finding, Status, worst
from ops.preflight.zones import Zone

_ORDER: dict[Status, int] = {"ok": 0, "note": 0, "unknown": 1, "failed": 2}

EXIT_CODES: dict[Status, int] = {"ok": 0, "note": 0, "failed": 1, "unknown": 3}
"""What a script sees: 2 is for wrong input and credentials, where nothing could be asked."""


@dataclass(frozen=True)
class Candidate:
    """A zone to deploy to, the second one that the control plane needs, and how its checks ended.

    `spare_zones` get subnets too, so that the nodes can move there without a new network.
    """

    region: str
    zone: str
    second_zone: str
    status: Status
    spare_zones: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegionReport:
    """All findings of a region, and its zones in the order they are preferred in."""

    region: str
    findings: tuple[Finding, ...]
    zones: tuple[Zone, ...] = ()
    wanted: tuple[str, ...] = field(default=())

    def zone_status(self, zone: str) -> Status:
        """The worst of what concerns the whole region and of what concerns the zone."""
        return worst(f for f in self.findings if f.zone in (None, zone))

    def candidates(self, second_zone: str | None = None) -> list[Candidate]:
        """The wanted zones: ready ones first, then those with open questions; `second_zone` where it will do."""
        found = [self._candidate(zone, second_zone) for zone in self.wanted]
        return sorted(found, key=lambda c: (_ORDER[c.status], -self._spot_score(c.zone)))

    def _candidate(self, zone: str, preferred: str | None) -> Candidate:
        others = [z for z in self._usable() if z != zone]
        ordered = sorted(others, key=lambda z: (z != preferred, z not in self.wanted, z))
        # Where the zones could not be listed, the settings' second zone is the best guess.
        second = ordered[0] if ordered else preferred if preferred not in (None, zone) else ""
        status = self.zone_status(zone) if second else "failed"
        spare = tuple(z for z in self.wanted if z in others and z != second)
        return Candidate(self.region, zone, second or "", status, spare)

    def _usable(self) -> list[str]:
        """Zones that can have a cluster's subnets, with or without GPU instances."""
        bad = {f.zone for f in self.findings if f.check == "zone" and f.status == "failed"}
        return [z.name for z in self.zones if z.name not in bad]

    def _spot_score(self, zone: str) -> int:
        texts = [f.text for f in self.findings if f.check == "spot" and f.zone == zone]
        return int(texts[0].split("score ")[1].split()[0]) if texts else 0


@dataclass(frozen=True)
class Survey:
    """The reports of all regions asked, and the zones to deploy to, both best first.

    `shared` are the findings that hold in every region and are in each report too. `deciding` names the zone
    whose state is the verdict; None: the best one's.
    """

    account: str
    arn: str
    reports: tuple[RegionReport, ...]
    candidates: tuple[Candidate, ...]
    shared: tuple[Finding, ...] = ()
    deciding: str | None = None

    @property
    def verdict(self) -> Candidate | None:
        """The candidate that decides; None if there is none."""
        return next((c for c in self.candidates if self.deciding in (None, c.zone)), None)

    @property
    def status(self) -> Status:
        """How its checks ended; failed if there is none."""
        return self.verdict.status if self.verdict else "failed"

    @property
    def exit_code(self) -> int:
        """0 ready, 1 not, 3 not known."""
        return EXIT_CODES[self.status]

    def to_json(self) -> dict[str, Any]:
        """For machines: the same as on the screen."""
        return {
            "status": self.status, "zone": self.verdict.zone if self.verdict else None,
            "account": self.account, "arn": self.arn,
            "candidates": [asdict(c) for c in self.candidates],
            "regions": [{
                "region": r.region,
                "zones": [{"name": z.name, "id": z.id, "status": r.zone_status(z.name)} for z in r.zones],
                "findings": [asdict(f) for f in r.findings],
            } for r in self.reports],
        }


def ranked(reports: Sequence[RegionReport], second_zone: str | None) -> tuple[list[RegionReport], list[Candidate]]:
    """Regions and zones, best first: ready before unknown before failed, then in the order they were given."""
    def key(report: RegionReport) -> tuple[int, int]:
        found = report.candidates(second_zone)
        ready = sum(c.status == "ok" for c in found)
        return min((_ORDER[c.status] for c in found), default=3), -min(ready, 1)

    order = sorted(reports, key=key)
    candidates = [c for report in order for c in report.candidates(second_zone)]
    return order, sorted(candidates, key=lambda c: _ORDER[c.status])
