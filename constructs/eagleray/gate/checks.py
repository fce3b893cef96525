"""Checks of an account against a shape: offering, quota, reservation, Capacity Block.

Each function takes boto3 clients (make them with `config=answers.PATIENT`) and returns one `Check`; none
raises for what AWS may answer. `eagleray preflight` and the gate's Lambda ask the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatch
from typing import Any

from botocore.exceptions import ClientError

from eagleray.gate.answers import error_code, error_text, pages, unknown_if_unasked
from eagleray.gate.shape import Check, Quota, Shape

# EC2 begins to stop a Capacity Block's instances half an hour before its end, and nodes take minutes to come.
_SHORTEST_USE = timedelta(hours=1)


@unknown_if_unasked("offering")
def offering(ec2: Any, shape: Shape) -> Check:
    """Whether the zone has the instance type at all; says which zones of the region do."""
    found = pages(ec2, "describe_instance_type_offerings", "InstanceTypeOfferings",
                  LocationType="availability-zone",
                  Filters=[{"Name": "instance-type", "Values": [shape.instance_type]}])
    zones = sorted(each["Location"] for each in found)
    if shape.zone in zones:
        return Check("offering", "ok", f"{shape.zone} has {shape.instance_type}")
    region = ec2.meta.region_name
    if not zones:
        return Check("offering", "failed", f"no zone of {region} that this account sees has {shape.instance_type}",
                     "choose another region or instance type")
    return Check("offering", "failed", f"{shape.zone} has no {shape.instance_type}",
                 f"deploy to {' or '.join(zones)}")


@unknown_if_unasked("quota")
def quota(quotas: Any, ec2: Any, wanted: Quota, shape: Shape, *, cluster: str | None,
          reservation_id: str | None = None) -> Check:
    """Whether the vCPU quota has room for the shape beside all that runs or is reserved already.

    Args:
        quotas: a service-quotas client.
        ec2: an ec2 client.
        wanted: the quota that counts.
        shape: what is asked for.
        cluster: EKS cluster that the instances are for: those that it runs already are part of the shape. None
            where they are not.
        reservation_id: a reservation made for this very shape, which is not counted beside it.
    """
    if wanted.code is None:
        return Check("quota", "unknown", f"which quota counts for {wanted.name} is not known",
                     "look for it at Service Quotas, service ec2")
    limit = _limit(quotas, wanted.code)
    used = running_vcpu(ec2, wanted, but_of_cluster=cluster)
    if wanted.market == "on-demand":
        used += unused_reserved_vcpu(ec2, wanted, but=reservation_id)
    need = shape.nodes * shape.vcpu
    said = f"{shape} need {need} vCPU; of the quota '{wanted.name}' ({limit}) {used} are in use"
    if used + need <= limit:
        return Check("quota", "ok", said)
    return Check("quota", "failed", said, (
        f"aws service-quotas request-service-quota-increase --region {ec2.meta.region_name} --service-code ec2 "
        f"--quota-code {wanted.code} --desired-value {used + need}"))


def _limit(quotas: Any, code: str) -> int:
    try:
        answer = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
    except ClientError as error:
        if error_code(error) != "NoSuchResourceException":
            raise
        # An account that never had a value of its own.
        answer = quotas.get_aws_default_service_quota(ServiceCode="ec2", QuotaCode=code)
    return int(answer["Quota"]["Value"])


def running_vcpu(ec2: Any, counted: Quota, but_of_cluster: str | None = None) -> int:
    """vCPUs of the running instances that count towards a quota, without those of one EKS cluster."""
    reservations = pages(ec2, "describe_instances", "Reservations", Filters=[
        {"Name": "instance-state-name", "Values": ["pending", "running"]},
        {"Name": "instance-type", "Values": list(counted.types)}])
    instances = [i for r in reservations for i in r["Instances"]
                 if i.get("InstanceLifecycle", "on-demand") == counted.market and not is_of(i, but_of_cluster)]
    return sum(i["CpuOptions"]["CoreCount"] * i["CpuOptions"]["ThreadsPerCore"] for i in instances)


def is_of(instance: dict[str, Any], cluster: str | None) -> bool:
    """Whether an instance of DescribeInstances is a node of that EKS cluster."""
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
    return cluster is not None and tags.get("eks:cluster-name") == cluster


def unused_reserved_vcpu(ec2: Any, counted: Quota, but: str | None = None) -> int:
    """vCPUs that On-Demand Capacity Reservations hold and nobody uses: they count towards the quota too."""
    active = pages(ec2, "describe_capacity_reservations", "CapacityReservations",
                   Filters=[{"Name": "state", "Values": ["active"]}])
    unused = [r for r in active if r["AvailableInstanceCount"] and r["CapacityReservationId"] != but
              and r.get("ReservationType", "default") == "default"
              and any(fnmatch(r["InstanceType"], pattern) for pattern in counted.types)]
    if not unused:
        return 0
    types = pages(ec2, "describe_instance_types", "InstanceTypes",
                  InstanceTypes=sorted({r["InstanceType"] for r in unused}))
    vcpu = {t["InstanceType"]: t["VCpuInfo"]["DefaultVCpus"] for t in types}
    return sum(r["AvailableInstanceCount"] * vcpu[r["InstanceType"]] for r in unused)


@unknown_if_unasked("reservation")
def reservation(ec2: Any, reservation_id: str, shape: Shape, *, cluster: str, now: datetime,
                placement_group: str | None = None) -> Check:
    """Whether an existing On-Demand Capacity Reservation can hold the shape, in that placement group or none."""
    found = _reservation(ec2, reservation_id)
    if isinstance(found, Check):
        return found
    if found.get("ReservationType") == "capacity-block":
        return Check("reservation", "failed", f"{reservation_id} is a Capacity Block",
                     "use capacity kind capacity-block for it")
    free = found["AvailableInstanceCount"] + _own_instances(ec2, reservation_id, cluster)
    faults = [*shape_faults(found, shape, free), *_state_faults(found, ["active"]), *_end_faults(found, now),
              *placement_faults(found, placement_group)]
    return _verdict("reservation", f"{reservation_id} has room for {shape} in {shape.zone}", reservation_id, faults)


@unknown_if_unasked("capacity-block")
def capacity_block(ec2: Any, reservation_id: str, shape: Shape, *, cluster: str, now: datetime,
                   starts: datetime | None = None) -> Check:
    """Whether a Capacity Block can hold the shape and starts when the deployment thinks that it does.

    `starts` is None for a block that should have started: its nodes are launched at once.
    """
    found = _reservation(ec2, reservation_id, "capacity-block")
    if isinstance(found, Check):
        return found
    if found.get("ReservationType") != "capacity-block":
        return Check("capacity-block", "failed", f"{reservation_id} is an On-Demand Capacity Reservation",
                     "use capacity kind reservation for it")
    ahead = found["State"] == "scheduled"
    # Nothing can be available yet in a block that has not started.
    free = (found["TotalInstanceCount"] if ahead
            else found["AvailableInstanceCount"] + _own_instances(ec2, reservation_id, cluster))
    faults = [*shape_faults(found, shape, free), *_state_faults(found, ["active", "scheduled"]),
              *_end_faults(found, now), *_start_faults(found, starts)]
    when = f"starts {written(found['StartDate'])}" if ahead else "has started"
    return _verdict("capacity-block", f"{reservation_id} {when} and has room for {shape} in {shape.zone}",
                    reservation_id, faults)


Fault = tuple[str, str]
"""What is wrong with a reservation, and what to do."""


def shape_faults(found: dict[str, Any], shape: Shape, free: int) -> list[Fault]:
    """Why a reservation of DescribeCapacityReservations with `free` places does not hold the shape."""
    faults = []
    if found["InstanceType"] != shape.instance_type:
        faults.append((f"is for {found['InstanceType']}, not {shape.instance_type}",
                       f"use instance type {found['InstanceType']} or another reservation"))
    if found["AvailabilityZone"] != shape.zone:
        faults.append((f"is in {found['AvailabilityZone']}, not {shape.zone}",
                       f"deploy to zone {found['AvailabilityZone']}"))
    if found.get("InstancePlatform", "Linux/UNIX") != "Linux/UNIX" or found.get("Tenancy", "default") != "default":
        faults.append((f"is for {found.get('InstancePlatform')} and {found.get('Tenancy')} tenancy",
                       "use one for Linux/UNIX and default tenancy"))
    if free < shape.nodes:
        faults.append((f"has {free} of {found['TotalInstanceCount']} instances left, {shape.nodes} are needed",
                       f"use {free} nodes or free some" if free else "free some instances of it"))
    return faults


def placement_faults(found: dict[str, Any], placement_group: str | None) -> list[Fault]:
    """Why nodes in `placement_group`, or in none, would not find a reservation made elsewhere."""
    made_in = placement_group_of(found)
    if made_in == placement_group:
        return []
    if made_in:
        return [(f"was made in placement group {made_in}, not {placement_group or 'outside of any'}",
                 f"set its placement group to {made_in}")]
    return [(f"was made in no placement group, not in {placement_group}", "set no placement group for it")]


def placement_group_of(found: dict[str, Any]) -> str | None:
    """Name of the placement group that a reservation of DescribeCapacityReservations was made in."""
    return found.get("PlacementGroupArn", "").rsplit("/", 1)[-1] or None


def _state_faults(found: dict[str, Any], good: Sequence[str]) -> list[Fault]:
    state = found["State"]
    return [] if state in good else [(f"is {state}, not {' or '.join(good)}", "use another one")]


def _end_faults(found: dict[str, Any], now: datetime) -> list[Fault]:
    end = found.get("EndDate")
    if end is None or end - now >= _SHORTEST_USE:
        return []
    return [(f"ends {written(end)}, too soon to be of use", "extend it or use another one")]


def _start_faults(found: dict[str, Any], starts: datetime | None) -> list[Fault]:
    start = written(found["StartDate"])
    if found["State"] == "scheduled" and (starts is None or written(starts) != start):
        said = f"not {written(starts)}" if starts else "not yet"
        return [(f"starts {start}, {said}", f"set its start to {start}: nodes come then")]
    if found["State"] == "active" and starts is not None:
        return [(f"has started {start}", "leave its start out: nodes come at once")]
    return []


def written(moment: datetime) -> str:
    """`2026-12-10T11:30Z`, for a moment in UTC."""
    return moment.strftime("%Y-%m-%dT%H:%MZ")


def _verdict(name: str, good: str, reservation_id: str, faults: Sequence[Fault]) -> Check:
    if not faults:
        return Check(name, "ok", good)
    return Check(name, "failed", f"{reservation_id} " + ", and ".join(f[0] for f in faults),
                 "; ".join(dict.fromkeys(f[1] for f in faults)))


def _reservation(ec2: Any, reservation_id: str, name: str = "reservation") -> dict[str, Any] | Check:
    try:
        answer = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    except ClientError as error:
        if not error_code(error).startswith("InvalidCapacityReservationId"):
            raise
        return Check(name, "failed", f"{reservation_id} is not there for this account in {ec2.meta.region_name} "
                                     f"({error_text(error)})", "check its id, the region and the account")
    return answer["CapacityReservations"][0]


def nodes_running(ec2: Any, shape: Shape, cluster: str) -> int:
    """How many instances of the shape's type the cluster runs in its zone."""
    return _count(ec2, cluster, {"instance-type": shape.instance_type, "availability-zone": shape.zone})


def _own_instances(ec2: Any, reservation_id: str, cluster: str) -> int:
    """Nodes of the cluster that sit in the reservation: they take no more of it than they have."""
    return _count(ec2, cluster, {"capacity-reservation-id": reservation_id})


def _count(ec2: Any, cluster: str, wanted: dict[str, str]) -> int:
    found = pages(ec2, "describe_instances", "Reservations", Filters=[
        *({"Name": name, "Values": [value]} for name, value in wanted.items()),
        {"Name": "tag:eks:cluster-name", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": ["pending", "running"]}])
    return sum(len(each["Instances"]) for each in found)
