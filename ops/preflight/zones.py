"""Availability Zones: their names in this account, their ids, and whether a cluster can stand in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.errors import NothingToDoError
from ops.preflight.finding import Finding, Region

_ID = re.compile(r"[a-z]+\d-az\d+")


@dataclass(frozen=True)
class Zone:
    """`us-east-2a` names another zone in each account, `use2-az1` is the same one for all."""

    name: str
    id: str
    state: str = "available"


def zones_of(region: Region) -> list[Zone]:
    """The zones that the account sees; no Local or Wavelength Zones, which have no EKS nodes with EFA."""
    answer = region.client("ec2").describe_availability_zones(
        Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}])
    return sorted((Zone(z["ZoneName"], z["ZoneId"], z["State"]) for z in answer["AvailabilityZones"]),
                  key=lambda zone: zone.name)


def zone_findings(zones: Sequence[Zone]) -> Iterator[Finding]:
    """Whether each zone is up and can have subnets of an EKS cluster."""
    without_eks = json.loads((Path(__file__).parent / "zones.json").read_text())["without_eks"]
    for zone in zones:
        if zone.state != "available":
            yield Finding("zone", "failed", f"{zone.name} is {zone.state}", "use another zone", zone.name)
        elif zone.id in without_eks:
            yield Finding("zone", "failed", f"EKS takes no subnets in {zone.id}, here {zone.name}",
                          "use another zone", zone.name)


def region_of(zone: str) -> str | None:
    """`us-east-2` of `us-east-2a`; None for an id, which does not say it."""
    return zone[:-1] if re.fullmatch(r"[a-z]{2}(-[a-z]+)+-\d[a-z]", zone) else None


def named(asked: Sequence[str], zones: Mapping[str, Sequence[Zone]]) -> dict[str, list[str]]:
    """Zone names by region, in the order asked for; ids are translated for this account.

    Args:
        asked: names or ids as a person wrote them.
        zones: the zones of each region that could be asked; empty for one that could not.

    Raises:
        NothingToDoError: for one that none of the regions has.
    """
    chosen: dict[str, list[str]] = {region: [] for region in zones}
    for text in asked:
        region, name = _find(text, zones)
        if name not in chosen[region]:
            chosen[region].append(name)
    return chosen


def _find(text: str, zones: Mapping[str, Sequence[Zone]]) -> tuple[str, str]:
    for region, there in zones.items():
        for zone in there:
            if text in (zone.name, zone.id):
                return region, zone.name
        if region_of(text) == region and not there:
            return region, text  # the list could not be read: its other checks will tell
    known = [f"{zone.name} ({zone.id})" for there in zones.values() for zone in there]
    kind = "zone id" if _ID.fullmatch(text) else "zone"
    raise NothingToDoError(f"--azs {text}: no such {kind} in {', '.join(zones)} for this account; "
                           f"use {', '.join(known[:8]) or 'names such as us-east-2a'}")
