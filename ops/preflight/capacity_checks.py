"""Whether the instances can be had: offering, EFA, quota, and the reservation that the settings name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from eagleray import catalog
from eagleray.catalog import InstanceType
from eagleray.gate import checks
from eagleray.gate.answers import pages
from eagleray.gate.shape import Shape
from ops.aws import error_code
from ops.preflight.finding import Finding, Region, found_by
from settings import Settings
from settings.capacity import CapacityBlock, Reservation

# A reservation has its instances already: launching in it takes nothing from a quota.
_HELD = ("reservation", "capacity-block")


def gpu_shape(settings: Settings, zone: str) -> Shape:
    """The GPU nodes in a zone."""
    gpu = settings.gpu
    return Shape(gpu.instance_type, gpu.nodes, zone, gpu.instance.vcpu)


def system_shape(settings: Settings, zone: str) -> Shape:
    """The system nodes in a zone."""
    system = settings.system
    return Shape(system.instance_type, system.nodes, zone, catalog.instance_type(system.instance_type).vcpu)


def offerings(region: Region, settings: Settings, zone: str) -> Iterator[Finding]:
    """Whether the zone has both instance types."""
    ec2 = region.client("ec2")
    for shape in (gpu_shape(settings, zone), system_shape(settings, zone)):
        yield found_by(checks.offering(ec2, shape), zone)


def gpu_quota(region: Region, settings: Settings) -> Iterator[Finding]:
    """The vCPU quota of the GPU instances, beside all that runs or is reserved."""
    kind = settings.gpu.capacity.kind
    if kind in _HELD:
        yield Finding("quota", "ok", f"{settings.gpu.instance_type}: capacity {kind} is counted already")
        return
    market = "spot" if kind == "spot" else "on-demand"
    yield _quota(region, settings, gpu_shape(settings, settings.network.zone), market)


def system_quota(region: Region, settings: Settings) -> Iterator[Finding]:
    """The vCPU quota of the system nodes."""
    yield _quota(region, settings, system_shape(settings, settings.network.zone), "on-demand")


def _quota(region: Region, settings: Settings, shape: Shape, market: Any) -> Finding:
    wanted = catalog.quota(shape.instance_type, market)
    return found_by(checks.quota(region.client("service-quotas"), region.client("ec2"), wanted, shape,
                                 cluster=settings.name))


def efa(region: Region, settings: Settings) -> Iterator[Finding]:
    """Whether EC2 here describes the GPU type as the templates were made for: EFA interfaces, GPUs, vCPUs."""
    wanted = settings.gpu.instance
    try:
        answer = region.client("ec2").describe_instance_types(InstanceTypes=[wanted.type])
    except ClientError as error:
        if error_code(error) != "InvalidInstanceType":
            raise
        yield Finding("efa", "failed", f"{region.name} has no {wanted.type}",
                      "choose another region or instance type")
        return
    found = answer["InstanceTypes"][0]
    network, gpus = found["NetworkInfo"], found.get("GpuInfo", {}).get("Gpus", [])
    if not network.get("EfaSupported"):
        yield Finding("efa", "failed", f"EC2 says that {wanted.type} has no EFA in {region.name}",
                      "use one of " + ", ".join(catalog.efa_gpu_types()[:3]))
        return
    yield _same(wanted, {"EFA interfaces": (network["EfaInfo"]["MaximumEfaInterfaces"], wanted.efa),
                         "GPUs": (sum(g["Count"] for g in gpus), wanted.gpus),
                         "vCPU": (found["VCpuInfo"]["DefaultVCpus"], wanted.vcpu)})


def _same(wanted: InstanceType, told_and_known: dict[str, tuple[int, int]]) -> Finding:
    wrong = [f"{told} {what}, not {known}" for what, (told, known) in told_and_known.items() if told != known]
    if wrong:
        return Finding("efa", "failed", f"EC2 says that {wanted.type} has {'; '.join(wrong)} as in our catalog",
                       "correct its row in constructs/eagleray/instances.json")
    said = ", ".join(f"{told} {what}" for what, (told, _) in told_and_known.items())
    return Finding("efa", "ok", f"{wanted.type}: {said}")


def placement_scores(region: Region, settings: Settings, zones: dict[str, str]) -> Iterator[Finding]:
    """How likely spot capacity is in each zone, 1 to 10, in EC2's own words; `zones` are names by id."""
    answer = region.client("ec2").get_spot_placement_scores(
        InstanceTypes=[settings.gpu.instance_type], TargetCapacity=settings.gpu.nodes,
        SingleAvailabilityZone=True, RegionNames=[region.name])
    for row in answer["SpotPlacementScores"]:
        if name := zones.get(row.get("AvailabilityZoneId", "")):
            yield Finding("spot", "note", f"{name}: placement score {row['Score']} of 10", zone=name)


def named_reservation(region: Region, settings: Settings, zone: str) -> Iterator[Finding]:
    """Whether the reservation or Capacity Block of the settings serves nodes in the zone."""
    chosen, ec2, shape = settings.gpu.capacity, region.client("ec2"), gpu_shape(settings, zone)
    if isinstance(chosen, Reservation):
        yield found_by(checks.reservation(ec2, chosen.id, shape, cluster=settings.name, now=_now(),
                                          placement_group=chosen.placement_group), zone)
    elif isinstance(chosen, CapacityBlock):
        yield found_by(checks.capacity_block(ec2, chosen.id, shape, cluster=settings.name, now=_now(),
                                             starts=chosen.starts), zone)


def fitting_reservations(region: Region, settings: Settings, zones: Sequence[str]) -> Iterator[Finding]:
    """A note for each reservation of the account that would hold the nodes, with the settings that use it."""
    found = pages(region.client("ec2"), "describe_capacity_reservations", "CapacityReservations", Filters=[
        {"Name": "state", "Values": ["active"]},
        {"Name": "instance-type", "Values": [settings.gpu.instance_type]}])
    for each in found:
        zone, free = each["AvailabilityZone"], each["AvailableInstanceCount"]
        if zone not in zones or checks.shape_faults(each, gpu_shape(settings, zone), free):
            continue
        kind = "capacity-block" if each.get("ReservationType") == "capacity-block" else "reservation"
        setting = f"gpu.capacity.kind={kind},gpu.capacity.id={each['CapacityReservationId']}"
        if group := each.get("PlacementGroupArn", "").rsplit("/", 1)[-1]:
            setting += f",gpu.capacity.placement_group={group}"
        yield Finding("reservation", "note", f"{each['CapacityReservationId']} in {zone} has {free} free",
                      f"to use it: -c set={setting}", zone)


def _now() -> datetime:
    return datetime.now(UTC)
