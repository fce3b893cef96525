"""Which zones to try, in which order, and what the network that stands already allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ops.preflight.finding import Region
from ops.preflight.report import Candidate, RegionReport, Survey
from ops.preflight.stack_checks import stands
from settings import Settings
from settings.placement import Placement

# Subnets of that many zones at most: each halves the addresses that are left for the others.
_MOST_ZONES = 6


@dataclass(frozen=True)
class Choice:
    """The places to try, best first, and the zones left out, each with the reason."""

    places: tuple[Candidate, ...]
    left_out: Mapping[str, str]


def choose(survey: Survey, tried: Mapping[str, str]) -> Choice:
    """The zones that the survey leaves; `tried` are those that an attempt which goes on has been through."""
    left_out = dict(tried)
    places = []
    for candidate in survey.candidates:
        if candidate.zone in tried:
            continue
        if candidate.status == "failed":
            left_out[candidate.zone] = why_not(survey, candidate)
        else:
            places.append(candidate)
    return Choice(tuple(places), left_out)


def why_not(survey: Survey, candidate: Candidate) -> str:
    """What fails in a zone: its own trouble first, then the region's."""
    report = next(r for r in survey.reports if r.region == candidate.region)
    failed = sorted((f for f in report.findings if f.status == "failed" and f.zone in (None, candidate.zone)),
                    key=lambda f: f.zone is None)
    return f"{failed[0].check}: {failed[0].text}" if failed else "there is no second zone for the control plane"


def placement(region: Region, settings: Settings, candidate: Candidate, report: RegionReport,
              as_written: tuple[str, str]) -> Placement | str:
    """The place in full: with the zones of the network that stands, or of a new one; or why there is none."""
    standing = network_zones(region, settings.name)
    if standing and candidate.zone not in standing:
        return (f"{settings.name}-network stands without subnets in {candidate.zone}, and subnets cannot be added "
                "between the others; to have new ones: cdk destroy --all, then eagleray up again")
    zones = standing or _zones_of_a_new_network(candidate, report, settings)
    others = sorted(zones - {candidate.zone}, key=lambda zone: (zone != candidate.second_zone, zone))
    if not others:
        return f"{settings.name}-network has no second zone for the control plane"
    return Placement(region.name, candidate.zone, others[0], tuple(sorted(others[1:])), as_written)


def network_zones(region: Region, name: str) -> set[str]:
    """The zones that the network of deployment `name` has subnets in; none where it does not stand."""
    if not stands(region, f"{name}-network"):
        return set()
    pages = region.client("ec2").get_paginator("describe_subnets").paginate(
        Filters=[{"Name": "tag:aws:cloudformation:stack-name", "Values": [f"{name}-network"]}])
    return {subnet["AvailabilityZone"] for page in pages for subnet in page["Subnets"]}


def _zones_of_a_new_network(candidate: Candidate, report: RegionReport, settings: Settings) -> set[str]:
    """The zone, its second one, and every other that the nodes may move to."""
    wanted = [candidate.zone, candidate.second_zone]
    if candidate.region == settings.region:
        wanted += settings.network.spare_zones
    wanted += [zone for zone in candidate.spare_zones if report.zone_status(zone) != "failed"]
    return set(list(dict.fromkeys(wanted))[:_MOST_ZONES])


def zone_of_standing_cluster(survey: Survey, settings: Settings, regions: Mapping[str, Region]) -> str | None:
    """The zone of the settings if the cluster stands there already: its nodes do not move unasked."""
    region = regions.get(settings.region)
    if region is None or not stands(region, f"{settings.name}-cluster"):
        return None
    return settings.network.zone


def only(choice: Choice, zones: Sequence[str], why: str) -> Choice:
    """The choice with these zones alone; the others are left out for that reason."""
    others = {c.zone: why for c in choice.places if c.zone not in zones}
    return Choice(tuple(c for c in choice.places if c.zone in zones), {**choice.left_out, **others})
