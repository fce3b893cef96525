"""All checks of all regions asked, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial

from eagleray import catalog
from ops.aws import Aws
from ops.errors import NothingToDoError
from ops.parallel import side_by_side
from ops.preflight import capacity_checks as capacity
from ops.preflight import network_checks, registry, role_checks, stack_checks, version_checks
from ops.preflight.finding import Finding, Region, answered
from ops.preflight.identity import identity, switched_off
from ops.preflight.report import RegionReport, Survey, ranked
from ops.preflight.zones import Zone, named, region_of, zone_findings, zones_of
from settings import Settings

Check = Callable[[], list[Finding]]


@dataclass(frozen=True)
class Request:
    """Where to look: regions in the order of preference, and zones by name or id; no zones are all of them.

    Make one with `of_settings`, `in_regions` or `in_all_regions`. `deciding` is the one zone whose state is the
    verdict, the others are only told; None where any of them will do.
    """

    regions: tuple[str, ...]
    zones: tuple[str, ...] = ()
    deciding: str | None = None

    @classmethod
    def of_settings(cls, settings: Settings) -> Request:
        """Where a plain `cdk deploy` would go, with the zones beside it for comparison."""
        return cls((settings.region,), deciding=settings.network.zone)

    @classmethod
    def in_regions(cls, regions: Sequence[str], zones: Sequence[str], settings: Settings) -> Request:
        """These regions, by default those that the zones name, or the settings'.

        Raises:
            NothingToDoError: for a region without EKS.
        """
        of_zones = [region for zone in zones if (region := region_of(zone))]
        chosen = tuple(dict.fromkeys([*regions, *of_zones])) if regions or of_zones else (settings.region,)
        for region in chosen:
            if region not in catalog.regions():
                near = get_close_matches(region, catalog.regions(), n=1) or ["us-east-2"]
                raise NothingToDoError(f"{region} is not a region with EKS; did you mean {near[0]}?")
        return cls(chosen, tuple(zones))

    @classmethod
    def in_all_regions(cls, settings: Settings) -> Request:
        """Every region with EKS, the settings' first."""
        return cls(tuple(dict.fromkeys([settings.region, *catalog.regions()])))


def survey(aws: Aws, settings: Settings, request: Request) -> Survey:
    """Ask everything; each call that AWS refuses is one `unknown`, the others go on.

    Raises:
        CredentialsError: for none, expired or wrong credentials.
        NothingToDoError: for a zone that none of the regions has.
    """
    who = identity(aws, request.regions, settings.account)
    off = switched_off(aws, request.regions)
    regions = [Region(aws, name, who.account) for name in request.regions if name not in off]
    listed = dict(zip((r.name for r in regions), side_by_side([partial(_zones, r) for r in regions]), strict=True))
    wanted = _wanted(settings, request, {name: zones for name, (zones, _) in listed.items()})
    # A region that the zones asked for are not in is not looked at.
    regions = [r for r in regions if wanted[r.name] or not request.zones]
    jobs = [(r.name, check) for r in regions
            for check in _region_checks(r, settings, wanted[r.name], listed[r.name][0])]
    everywhere = _account_checks(aws, settings)
    results = side_by_side([*everywhere, *(check for _, check in jobs)])
    shared = [Finding("identity", "ok", who.arn), *_flat(results[:len(everywhere)])]
    reports = [RegionReport(name, tuple(findings)) for name, findings in off.items()]
    for region in regions:
        own = _flat(found for (name, _), found in zip(jobs, results[len(everywhere):], strict=True)
                    if name == region.name)
        zones, trouble = listed[region.name]
        findings = (*shared, *trouble, *own)
        reports.append(RegionReport(region.name, findings, tuple(zones), tuple(wanted[region.name])))
    asked_first = sorted(reports, key=lambda r: request.regions.index(r.region))
    order, candidates = ranked(asked_first, settings.network.second_zone)
    return Survey(who.account, who.arn, tuple(order), tuple(candidates), tuple(shared), request.deciding)


def _zones(region: Region) -> tuple[list[Zone], list[Finding]]:
    """The zones, and what is wrong with them."""
    zones: list[Zone] = []

    def ask() -> Iterable[Finding]:
        zones.extend(zones_of(region))
        return zone_findings(zones)
    return zones, answered("zone", ask)


def _wanted(settings: Settings, request: Request, zones: Mapping[str, Sequence[Zone]]) -> dict[str, list[str]]:
    """Zones to look at in each region, the settings' first where they are among them."""
    if request.zones:
        return named(request.zones, zones)
    first = settings.network.zone
    chosen = {region: sorted((z.name for z in there), key=lambda name: name != first)
              for region, there in zones.items()}
    if settings.region in chosen and first not in chosen[settings.region]:
        # Not listed, or not there: its checks will tell.
        chosen[settings.region].insert(0, first)
    return chosen


def _account_checks(aws: Aws, settings: Settings) -> list[Check]:
    """Checks whose answer is the same in every region."""
    return [
        partial(answered, "roles", lambda: role_checks.service_roles(
            aws.client("iam", settings.region), settings.gpu.capacity.kind)),
        partial(answered, "image", lambda: registry.training_image(aws, settings.ray.image)),
    ]


def _region_checks(region: Region, settings: Settings, wanted: Sequence[str], zones: Sequence[Zone]) -> list[Check]:
    """One job for each check of the region and for each of its zones."""
    kind = settings.gpu.capacity.kind
    asks: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        ("bootstrap", lambda: stack_checks.bootstrap(region)),
        ("stacks", lambda: stack_checks.stacks(region, settings.name)),
        ("quota", lambda: capacity.gpu_quota(region, settings)),
        ("quota", lambda: capacity.system_quota(region, settings)),
        ("efa", lambda: capacity.efa(region, settings)),
        ("network", lambda: network_checks.network_quotas(region, settings.name)),
        ("eks", lambda: version_checks.eks_version(region, settings.cluster.version)),
        ("image", lambda: registry.efa_plugin(region)),
    ]
    for zone in wanted:
        asks.append(("offering", partial(capacity.offerings, region, settings, zone)))
        asks.append(("reservation", partial(capacity.named_reservation, region, settings, zone)))
    if kind == "on-demand":
        asks.append(("reservation", lambda: capacity.fitting_reservations(region, settings, wanted)))
    if kind == "spot":
        ids = {z.id: z.name for z in zones}
        asks.append(("spot", lambda: capacity.placement_scores(region, settings, ids)))
    return [partial(answered, name, ask) for name, ask in asks]


def _flat(lists: Iterable[list[Finding]]) -> list[Finding]:
    return [finding for findings in lists for finding in findings]
