"""On-Demand Capacity Reservations that are made, kept and cancelled here; each ends by itself at a set time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from eagleray.gate.answers import NO_PERMISSION, denied, error_code, error_text, pages, unasked
from eagleray.gate.checks import placement_group_of
from eagleray.gate.shape import Check, Shape

# Whose reservation it is: the permission to change or cancel one is tied to this tag.
OWNER_TAG = "eagleray:gate"
_STANDING = ["active", "pending"]
_PROBE_HOURS = 1
_NO_CAPACITY = {"InsufficientInstanceCapacity", "InsufficientCapacity", "ReservationCapacityExceeded"}
_NO_QUOTA = {"InstanceLimitExceeded", "VcpuLimitExceeded"}


def end_after(start: datetime, hours: int) -> datetime:
    """The end of a reservation made at `start`, `hours` after the next full hour.

    Full hours, so that a request that is repeated says the same: EC2 refuses a repetition that differs.
    """
    full_hour = start.replace(minute=0, second=0, microsecond=0)
    return full_hour + timedelta(hours=hours + (start > full_hour))


def make(ec2: Any, shape: Shape, *, ends: datetime, owner: str, token: str,
         placement_group_arn: str | None = None) -> dict[str, Any]:
    """Reserve the shape until `ends` for those who name the reservation; billed from now on.

    Args:
        ec2: an ec2 client.
        shape: what to reserve.
        ends: when EC2 gives it back by itself.
        owner: value of its tag `eagleray:gate`.
        token: up to 64 characters; the same one again makes no second reservation.
        placement_group_arn: the cluster placement group to reserve in.

    Returns:
        It as DescribeCapacityReservations tells it, active.

    Raises:
        ClientError: as EC2 answers, for example InsufficientInstanceCapacity.
    """
    placed = {"PlacementGroupArn": placement_group_arn} if placement_group_arn else {}
    made = ec2.create_capacity_reservation(
        InstanceType=shape.instance_type, InstanceCount=shape.nodes, AvailabilityZone=shape.zone,
        InstancePlatform="Linux/UNIX", Tenancy="default", InstanceMatchCriteria="targeted",
        EndDateType="limited", EndDate=ends, ClientToken=token, **placed,
        TagSpecifications=[{"ResourceType": "capacity-reservation",
                            "Tags": [{"Key": OWNER_TAG, "Value": owner}]}])["CapacityReservation"]
    while made["State"] == "pending":
        time.sleep(1)
        made = ec2.describe_capacity_reservations(
            CapacityReservationIds=[made["CapacityReservationId"]])["CapacityReservations"][0]
    if made["State"] != "active":
        said = f"{made['CapacityReservationId']} became {made['State']}"
        raise ClientError({"Error": {"Code": "InsufficientInstanceCapacity", "Message": said}},
                          "CreateCapacityReservation")
    return made


def standing(ec2: Any, owner: str) -> list[dict[str, Any]]:
    """The owner's reservations that are billed now, oldest first."""
    found = pages(ec2, "describe_capacity_reservations", "CapacityReservations", Filters=[
        {"Name": f"tag:{OWNER_TAG}", "Values": [owner]}, {"Name": "state", "Values": _STANDING}])
    return sorted(found, key=lambda each: (each["CreateDate"], each["CapacityReservationId"]))


def of_shape(found: Iterable[dict[str, Any]], shape: Shape, placement_group: str | None
             ) -> dict[str, Any] | None:
    """The reservation that serves the shape in that group, if need be with another number of instances."""
    same = [each for each in found
            if (each["InstanceType"], each["AvailabilityZone"], placement_group_of(each))
            == (shape.instance_type, shape.zone, placement_group)]
    return same[0] if same else None


def adjust(ec2: Any, found: dict[str, Any], *, nodes: int, ends: datetime) -> dict[str, Any]:
    """Give a reservation that many instances and that end; nothing is asked of EC2 when it has them.

    Returns:
        The reservation as it is now.

    Raises:
        ClientError: as EC2 answers, for example InsufficientInstanceCapacity for more instances.
    """
    if (found["TotalInstanceCount"], found.get("EndDate")) != (nodes, ends):
        ec2.modify_capacity_reservation(CapacityReservationId=found["CapacityReservationId"], InstanceCount=nodes,
                                        EndDateType="limited", EndDate=ends)
    return {**found, "TotalInstanceCount": nodes, "EndDate": ends}


def cancel(ec2: Any, reservation_id: str) -> None:
    """Give a reservation back; one that is gone or has ended already counts as given back.

    Raises:
        ClientError: when it still stands.
    """
    try:
        ec2.cancel_capacity_reservation(CapacityReservationId=reservation_id)
    except ClientError:
        if _stands(ec2, reservation_id):
            raise


def _stands(ec2: Any, reservation_id: str) -> bool:
    try:
        found = ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])["CapacityReservations"]
    except ClientError as error:
        return not error_code(error).startswith("InvalidCapacityReservationId")
    return any(each["State"] in _STANDING for each in found)


def probe(ec2: Any, shape: Shape, *, now: datetime, owner: str,
          placement_group_arn: str | None = None) -> Check:
    """Whether the zone has the instances now: reserves exactly the shape and cancels it, whatever happens.

    That costs the instances for some seconds. What is free now may be gone when the nodes are launched.
    """
    try:
        made = make(ec2, shape, ends=end_after(now, _PROBE_HOURS), owner=owner, token=str(uuid.uuid4()),
                    placement_group_arn=placement_group_arn)
    except ClientError as error:
        refused = error_code(error) in _NO_CAPACITY | _NO_QUOTA
        return refusal(error, shape) if refused else unasked("capacity", error)
    except BotoCoreError as error:
        return unasked("capacity", error)
    finally:
        # By owner, not by id: an answer that got lost may have made one.
        left = _cancel_all(ec2, owner)
    if left:
        return Check("capacity", "unknown", f"{shape} are free, but their reservation is not cancelled ({left})",
                     by_hand(made["CapacityReservationId"]))
    return Check("capacity", "ok", f"{shape.zone} has {shape} free now")


def _cancel_all(ec2: Any, owner: str) -> str:
    """Cancel all that the owner has; what went wrong, or nothing."""
    try:
        for each in standing(ec2, owner):
            cancel(ec2, each["CapacityReservationId"])
    except (ClientError, BotoCoreError) as error:
        return error_text(error)
    return ""


def refusal(error: ClientError, shape: Shape) -> Check:
    """The failed check for EC2's refusal to reserve the shape."""
    code = error_code(error)
    if code in _NO_CAPACITY:
        return Check("capacity", "failed", f"{shape.zone} has no {shape} free now ({error_text(error)})",
                     "deploy to another zone, or to this one later, or with fewer nodes")
    if code in _NO_QUOTA:
        return Check("capacity", "failed", f"the vCPU quota has no room for {shape} ({error_text(error)})",
                     "raise the quota of this instance family at Service Quotas, service ec2")
    if denied(error):
        return Check("capacity", "failed", f"{NO_PERMISSION} to call {error.operation_name}",
                     f"allow {error.operation_name}, or use another capacity kind")
    return Check("capacity", "failed", f"{shape} could not be reserved ({code}: {error_text(error)})",
                 "use another capacity kind if this stays")


def by_hand(reservation_id: str) -> str:
    """The command that cancels it."""
    return f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {reservation_id}"
