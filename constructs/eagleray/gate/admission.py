"""Whether a deployment may go on: the checks of each kind of capacity, and the reservation of kind `reserve`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from eagleray.gate import checks, reservations
from eagleray.gate.answers import NO_PERMISSION, error_code, error_text
from eagleray.gate.request import Request, Wanted
from eagleray.gate.shape import Check

# Physical ids where no reservation was made; where one was, its id is the physical id.
CHECKED, REFUSED = "capacity-checked", "capacity-refused"
_MORE_TRIES, _PAUSE_SECONDS = 2, 6


class RefusedError(Exception):
    """The deployment cannot work; the message says why and what to do."""


@dataclass(frozen=True)
class Aws:
    """The clients, and the time that a request is judged by, in UTC."""

    ec2: Any
    quotas: Any
    cloudformation: Any
    now: datetime


@dataclass(frozen=True)
class Admitted:
    """What stands now: the physical id, and what the stack's other resources can read."""

    physical_id: str
    reservation_id: str = ""
    summary: str = ""


def admit(aws: Aws, request: Request) -> Admitted:
    """Check what is asked for; for `reserve`, reserve it or keep what is reserved already.

    Raises:
        RefusedError: when it cannot work.
    """
    wanted = Wanted.of(request.properties)
    ask = _reserve if wanted.kind == "reserve" else _check
    # The permissions of a role that was made a moment ago take some seconds to hold everywhere.
    for _ in range(_MORE_TRIES):
        try:
            admitted = ask(aws, request, wanted)
        except RefusedError as refused:
            if NO_PERMISSION not in str(refused):
                raise
        else:
            if NO_PERMISSION not in admitted.summary:
                return admitted
        time.sleep(_PAUSE_SECONDS)
    return ask(aws, request, wanted)


def _check(aws: Aws, request: Request, wanted: Wanted) -> Admitted:
    return Admitted(CHECKED, wanted.reservation_id, _judged(_checks(aws, request, wanted)))


def _checks(aws: Aws, request: Request, wanted: Wanted) -> list[Check]:
    if wanted.kind == "reservation":
        return [checks.reservation(aws.ec2, wanted.reservation_id, wanted.shape, cluster=wanted.cluster,
                                   now=aws.now, placement_group=wanted.placement_group)]
    if wanted.kind == "capacity-block":
        return [checks.capacity_block(aws.ec2, wanted.reservation_id, wanted.shape, cluster=wanted.cluster,
                                      now=aws.now, starts=wanted.starts)]
    found = [checks.offering(aws.ec2, wanted.shape),
             checks.quota(aws.quotas, aws.ec2, wanted.quota, wanted.shape, cluster=wanted.cluster)]
    if wanted.probes and all(check.status != "failed" for check in found):
        found += _probe(aws, request, wanted)
    return found


def _probe(aws: Aws, request: Request, wanted: Wanted) -> list[Check]:
    """Of the nodes that do not run yet; none if all do."""
    try:
        missing = wanted.shape.nodes - checks.nodes_running(aws.ec2, wanted.shape, wanted.cluster)
    except (ClientError, BotoCoreError):
        missing = wanted.shape.nodes
    if missing <= 0:
        return []
    return [reservations.probe(aws.ec2, replace(wanted.shape, nodes=missing), now=aws.now, owner=request.prober,
                               placement_group_arn=wanted.placement_group_arn)]


def _reserve(aws: Aws, request: Request, wanted: Wanted) -> Admitted:
    """The reservation, with the end counted from when it was made: an update renews nothing by itself."""
    try:
        own = reservations.standing(aws.ec2, request.owner)
        kept = reservations.of_shape(own, wanted.shape, wanted.placement_group)
        found = [
            checks.offering(aws.ec2, wanted.shape),
            # In a reservation that stands, the cluster's nodes are part of the shape; a new one comes on top.
            checks.quota(aws.quotas, aws.ec2, wanted.quota, wanted.shape,
                         cluster=wanted.cluster if kept else None,
                         reservation_id=kept["CapacityReservationId"] if kept else None),
        ]
        summary = _judged(found)
        kept = _made_or_kept(aws, request, wanted, kept)
    except ClientError as error:
        raise RefusedError(str(reservations.refusal(error, wanted.shape))) from error
    except BotoCoreError as error:
        raise RefusedError(f"capacity: AWS could not be asked ({error_text(error)}). Fix: deploy again") from error
    reservation_id, ends = kept["CapacityReservationId"], checks.written(kept["EndDate"])
    held = f"{reservation_id} holds {wanted.shape} until {ends}"
    return Admitted(reservation_id, reservation_id, f"{held}; {summary}")


def _made_or_kept(aws: Aws, request: Request, wanted: Wanted, kept: dict[str, Any] | None) -> dict[str, Any]:
    if kept:
        return _adjusted(aws, wanted, kept)
    try:
        return reservations.make(
            aws.ec2, wanted.shape, ends=reservations.end_after(aws.now, wanted.hours), owner=request.owner,
            token=request.id, placement_group_arn=wanted.placement_group_arn)
    except ClientError as error:
        # An earlier attempt of this request made it, in another hour, and EC2 did not list it yet.
        again = reservations.of_shape(reservations.standing(aws.ec2, request.owner), wanted.shape,
                                      wanted.placement_group)
        if error_code(error) != "IdempotentParameterMismatch" or again is None:
            raise
        return again


def _adjusted(aws: Aws, wanted: Wanted, kept: dict[str, Any]) -> dict[str, Any]:
    """With the number and the hours that are asked for, counted from when it was made."""
    ends = reservations.end_after(kept["CreateDate"], wanted.hours)
    if ends <= aws.now:
        ends = reservations.end_after(aws.now, 0)
    return reservations.adjust(aws.ec2, kept, nodes=wanted.shape.nodes, ends=ends)


def _judged(found: list[Check]) -> str:
    """All answers in a line, the unknown ones first.

    Raises:
        RefusedError: if one of them failed.
    """
    if failed := [check for check in found if check.status == "failed"]:
        raise RefusedError("; ".join(map(str, failed)))
    unknown = [check for check in found if check.status == "unknown"]
    return "; ".join([*(f"NOT CHECKED {check}" for check in unknown),
                      *(str(check) for check in found if check not in unknown)])


def going_back(aws: Aws, request: Request) -> bool:
    """Whether the stack returns to what it was: then nothing is checked, since nothing else can be done."""
    try:
        stack, = aws.cloudformation.describe_stacks(StackName=request.stack)["Stacks"]
    except (ClientError, BotoCoreError) as error:
        print(f"WARNING: not known whether the stack rolls back: {error_text(error)}")
        return False
    return "ROLLBACK" in stack["StackStatus"]


def restore(aws: Aws, request: Request) -> Admitted:
    """What stood before an update that failed: its reservation if it still stands, without those of the update.

    A stack that cannot go back is stuck, so whatever EC2 refuses here is only logged.
    """
    wanted = Wanted.of(request.properties)
    kept = None
    try:
        own = reservations.standing(aws.ec2, request.owner)
        if wanted.kind == "reserve":
            kept = reservations.of_shape(own, wanted.shape, wanted.placement_group)
        for each in own:
            # CloudFormation itself deletes what it knows the update to have made.
            if each is not kept and each["CapacityReservationId"] != request.physical_id:
                reservations.cancel(aws.ec2, each["CapacityReservationId"])
        if kept:
            _adjusted(aws, wanted, kept)
    except (ClientError, BotoCoreError) as error:
        print(f"WARNING: not all is as before: {error_text(error)}")
    if wanted.kind != "reserve":
        return Admitted(CHECKED, wanted.reservation_id, "as before")
    reservation_id = kept["CapacityReservationId"] if kept else request.physical_id
    return Admitted(reservation_id, reservation_id, "as before" if kept else "as before, but the reservation ended")


def release(aws: Aws, request: Request) -> None:
    """Cancel what this physical id stands for; after a creation that failed, whatever it left.

    Raises:
        RefusedError: when a reservation still stands and is billed.
    """
    if request.physical_id == CHECKED:
        return
    try:
        left = [request.physical_id] if request.physical_id.startswith("cr-") else [
            each["CapacityReservationId"] for owner in (request.owner, request.prober)
            for each in reservations.standing(aws.ec2, owner)]
    except (ClientError, BotoCoreError) as error:
        raise RefusedError(f"release: not known whether a reservation is left ({error_text(error)}). "
                           "Fix: look at EC2, Capacity Reservations, then delete the stack again") from error
    for each in left:
        try:
            reservations.cancel(aws.ec2, each)
        except (ClientError, BotoCoreError) as error:
            raise RefusedError(f"release: {each} is still billed until it ends: {error_text(error)}. Fix: "
                               f"{reservations.by_hand(each)}, then delete the stack again") from error
