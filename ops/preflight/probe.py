"""The one thing here that changes something, for seconds: reserving the nodes to see whether they are free."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from eagleray.gate import reservations
from eagleray.gate.shape import Shape
from ops.aws import FAILURES, error_code, trouble
from ops.errors import NothingToDoError
from ops.interrupts import Interrupts, interrupts
from ops.preflight.capacity_checks import gpu_shape
from ops.preflight.finding import Finding, Region, found_by
from settings import Settings

Say = Callable[[str], None]

# EC2 gives a probe's reservation back by itself after one to two hours, should this machine die meanwhile.
_HOURS = 1
# A call that is under way when the command is stopped is waited for: its reservation must be known to go.
_WAIT_SECONDS = 60
_LOOKS, _PAUSE_SECONDS = 3, 2.0


def refuse_senseless(settings: Settings) -> None:
    """Raise NothingToDoError where a reservation would say nothing about the capacity that is asked for."""
    kind = settings.gpu.capacity.kind
    if kind not in ("on-demand", "reserve"):
        raise NothingToDoError(f"--probe asks for on-demand capacity, and gpu.capacity.kind is {kind}; "
                               "leave --probe out")


def probe(region: Region, settings: Settings, zone: str, say: Say) -> Finding:
    """Whether the zone has the GPU nodes now: reserve them, in a placement group of their own, and cancel that.

    It is cancelled also after an error, Ctrl-C and SIGTERM; `say` is told its id as soon as there is one.

    Raises:
        StoppedError: if a signal came; the reservation is gone by then, or named on the screen.
    """
    ec2, shape = region.client("ec2"), gpu_shape(settings, zone)
    owner = f"eagleray-probe-{uuid.uuid4().hex[:12]}"
    with interrupts() as signals, _cleaned_up(ec2, region.name, owner, signals, say) as reserve:
        try:
            made = reserve(shape)
        except ClientError as error:
            if trouble(error).kind != "refused":
                return _unknown(error, zone)
            return found_by(reservations.refusal(error, shape), zone)
        except BotoCoreError as error:
            return _unknown(error, zone)
        say(f"{zone}: reserved as {made['CapacityReservationId']}")
        return Finding("capacity", "ok", f"{zone} has {shape} free now", zone=zone)


@contextmanager
def _cleaned_up(ec2: Any, region: str, owner: str, signals: Interrupts, say: Say
                ) -> Iterator[Callable[[Shape], dict[str, Any]]]:
    """Gives the function that reserves; when the block ends, however it does, nothing of it is left."""
    # Known before its thread starts: a signal may come at any moment after that.
    making: Future[dict[str, Any]] = Future()

    def reserve(shape: Shape) -> dict[str, Any]:
        # In a thread: a signal would drop an answer that is under way, and with it the reservation's id.
        threading.Thread(target=_make, args=(making, ec2, shape, owner), daemon=True).start()
        return making.result()
    try:
        try:
            yield reserve
        finally:
            signals.clean_up_undisturbed()
    finally:
        # A signal that came within the line above is the last one that disturbs.
        if not making.cancel():  # which it cannot be once its thread has begun
            left = _give_back(ec2, owner, making)
            _remove_group(ec2, owner, say)
            for each in left:
                say(f"NOT cancelled: {each}; it ends by itself within {_HOURS + 1} hours, or now with: "
                    f"{reservations.by_hand(each)} --region {region}")
            if not left:
                say("cancelled; nothing of it is left")


def _make(making: Future[dict[str, Any]], ec2: Any, shape: Shape, owner: str) -> None:
    if not making.set_running_or_notify_cancel():
        return
    try:
        group = ec2.create_placement_group(GroupName=owner, Strategy="cluster")["PlacementGroup"]
        making.set_result(reservations.make(
            ec2, shape, ends=reservations.end_after(datetime.now(UTC), _HOURS), owner=owner, token=owner,
            placement_group_arn=group["GroupArn"]))
    except Exception as error:  # raised again where the result is asked for
        making.set_exception(error)


def _give_back(ec2: Any, owner: str, making: Future[dict[str, Any]]) -> list[str]:
    """Cancel what was made; ids of what may still stand, or the tag where not even the id is known."""
    known = _id_of(making)
    left = {known} if known else set()
    # By tag as well: the answer that named the id may be lost. What was just made is not always listed at once.
    for look in range(1 if known or _is_refusal(making) else _LOOKS):
        time.sleep(_PAUSE_SECONDS if look else 0)
        try:
            left |= {each["CapacityReservationId"] for each in reservations.standing(ec2, owner)}
        except FAILURES:
            left |= set() if known else {f"tag:{reservations.OWNER_TAG}={owner}"}
    for each in sorted(left):
        try:
            reservations.cancel(ec2, each)
        except FAILURES:
            continue
        left.discard(each)
    return sorted(left)


def _id_of(made: Future[dict[str, Any]]) -> str | None:
    try:
        return made.result(timeout=_WAIT_SECONDS)["CapacityReservationId"]
    except (*FAILURES, TimeoutError):
        return None


def _is_refusal(made: Future[dict[str, Any]]) -> bool:
    """True if EC2 itself said no, so that nothing can have been made."""
    return made.done() and isinstance(made.exception(), ClientError)


def _remove_group(ec2: Any, owner: str, say: Say) -> None:
    """The placement group; free of charge, so that one which stays is only told."""
    try:
        ec2.delete_placement_group(GroupName=owner)
    except FAILURES as error:
        if error_code(error) != "InvalidPlacementGroup.Unknown":
            say(f"placement group {owner} stays ({trouble(error).text}); it costs nothing")


def _unknown(error: Exception, zone: str) -> Finding:
    why = trouble(error)
    return Finding("capacity", "unknown", why.text, why.fix, zone)
