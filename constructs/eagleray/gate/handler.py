"""The Lambda behind the custom resource `Custom::EagleRayCapacityGate`.

It answers CloudFormation in every case: with the reason and the fix when the deployment cannot work, when it
runs out of time, and when it fails itself.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3

from eagleray.gate import admission, response
from eagleray.gate.admission import CHECKED, REFUSED, Admitted, Aws, RefusedError
from eagleray.gate.answers import PATIENT
from eagleray.gate.request import Request

# Of the Lambda's time, kept for the answer: three attempts with pauses.
_SECONDS_TO_ANSWER = 13


class OutOfTime(BaseException):
    """AWS's APIs did not answer in the time that the Lambda has.

    Not an Exception: boto would take that for an error of the network.
    """


def handler(event: Mapping[str, Any], context: Any) -> None:
    """Do what CloudFormation asks, and answer it."""
    print(json.dumps({name: value for name, value in event.items() if name != "ResponseURL"}))
    physical_id = event.get("PhysicalResourceId") or REFUSED
    try:
        with _at_most(context.get_remaining_time_in_millis() / 1000 - _SECONDS_TO_ANSWER):
            admitted = _done(Request.of(event))
    except RefusedError as refused:
        _fail(event, physical_id, str(refused))
    except OutOfTime:
        _fail(event, physical_id, "time: AWS's APIs did not answer in time. Fix: deploy again; see the AWS Health "
                                  "Dashboard if it stays so")
    except Exception as error:
        _fail(event, physical_id, f"gate: {type(error).__name__}: {error}. Fix: see log group "
                                  f"{context.log_group_name}; deploy again")
    else:
        print(admitted.summary)
        response.send(event, status="SUCCESS", physical_id=admitted.physical_id, data={
            "ReservationId": admitted.reservation_id, "Summary": admitted.summary})


def _done(request: Request) -> Admitted:
    aws = Aws(ec2=boto3.client("ec2", config=PATIENT), quotas=boto3.client("service-quotas", config=PATIENT),
              cloudformation=boto3.client("cloudformation", config=PATIENT), now=datetime.now(UTC))
    if request.type == "Delete":
        admission.release(aws, request)
        return Admitted(request.physical_id, summary="released")
    if request.changes_nothing:
        reservation_id = request.physical_id if request.physical_id != CHECKED else ""
        return Admitted(request.physical_id, reservation_id or request.properties.get("ReservationId", ""),
                        "unchanged")
    if request.type == "Update" and admission.going_back(aws, request):
        return admission.restore(aws, request)
    return admission.admit(aws, request)


def _fail(event: Mapping[str, Any], physical_id: str, reason: str) -> None:
    print(f"FAILED: {reason}")
    response.send(event, status="FAILED", physical_id=physical_id, reason=reason)


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
