"""The capacity gate's Lambda as it is deployed: event in, CloudFormation's answer out, over real HTTP."""

import threading
import time
from datetime import timedelta

import pytest
from botocore.exceptions import EndpointConnectionError
from gate_aws import BLOCK, NAMED, NOW, ON_DEMAND, OWNER, PROBED, RESERVE, Account, RefusedError


def test_what_can_work_passes_and_says_what_was_checked(gate):
    answer = gate(Account())("Create", ON_DEMAND)
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("SUCCESS", "capacity-checked")
    assert "us-east-2a has g6.12xlarge" in answer["Data"]["Summary"]
    assert "2 x g6.12xlarge need 96 vCPU" in answer["Data"]["Summary"]
    assert answer["Data"]["ReservationId"] == ""


@pytest.mark.parametrize(("account", "properties", "reason", "fix"), [
    (Account(quota=95), ON_DEMAND, "quota: 2 x g6.12xlarge need 96 vCPU",
     "Fix: aws service-quotas request-service-quota-increase --region us-east-2"),
    (Account(zones=("us-east-2c",)), ON_DEMAND, "offering: us-east-2a has no g6.12xlarge",
     "Fix: deploy to us-east-2c"),
    (Account(zones=()), ON_DEMAND, "offering: no zone of us-east-2", "Fix: choose another region"),
    (Account(), NAMED, "reservation: cr-00000000000000001 is not there for this account", "Fix: check its id"),
])
def test_what_cannot_work_fails_with_reason_and_fix(gate, account, properties, reason, fix):
    answer = gate(account)("Create", properties)
    assert (answer["Status"], answer["PhysicalResourceId"]) == ("FAILED", "capacity-refused")
    assert answer["Reason"].startswith(reason)
    assert fix in answer["Reason"]


@pytest.mark.parametrize(("changes", "properties", "reason"), [
    ({}, NAMED, None),
    ({"count": 1}, NAMED, "has 1 of 1 instances left, 2 are needed"),
    ({"zone": "us-east-2b"}, NAMED, "is in us-east-2b, not us-east-2a"),
    ({"State": "expired"}, NAMED, "is expired, not active"),
    ({"EndDate": NOW + timedelta(minutes=30)}, NAMED, "too soon to be of use"),
    ({"PlacementGroupArn": "arn:aws:ec2:::placement-group/tight"}, NAMED, "was made in placement group tight"),
    ({"InstancePlatform": "Windows"}, NAMED, "is for Windows"),
    ({"ReservationType": "capacity-block"}, NAMED, "is a Capacity Block"),
    ({}, BLOCK, "is an On-Demand Capacity Reservation"),
    ({"ReservationType": "capacity-block"}, BLOCK, None),
    ({"ReservationType": "capacity-block"}, {**BLOCK, "Starts": "2026-12-03T11:30:00Z"}, "has started"),
    ({"ReservationType": "capacity-block", "State": "scheduled", "StartDate": NOW + timedelta(days=1)}, BLOCK,
     "starts 2026-12-03T10:20Z, not yet"),
    ({"ReservationType": "capacity-block", "State": "scheduled", "StartDate": NOW + timedelta(days=1)},
     {**BLOCK, "Starts": "2026-12-03T10:20:00Z"}, None),
])
def test_a_reservation_or_block_must_hold_the_nodes(gate, changes, properties, reason):
    account = Account()
    account.has(**changes)
    answer = gate(account)("Create", properties)
    assert answer["Status"] == ("SUCCESS" if reason is None else "FAILED"), answer["Reason"]
    assert reason is None or reason in answer["Reason"]


@pytest.mark.parametrize("refusal", [
    RefusedError("AccessDeniedException"), RefusedError("UnauthorizedOperation"), RefusedError("Throttling"),
    EndpointConnectionError(endpoint_url="https://servicequotas")])
def test_what_may_not_be_asked_is_left_unchecked_and_told(gate, refusal):
    account = Account()
    account.refusals["GetServiceQuota"] = refusal
    answer = gate(account)("Create", ON_DEMAND)
    assert answer["Status"] == "SUCCESS"
    assert answer["Data"]["Summary"].startswith("NOT CHECKED quota:")


def test_an_account_that_never_had_a_quota_of_its_own_has_the_default(gate):
    account = Account()
    account.refusals["GetServiceQuota"] = RefusedError("NoSuchResourceException")
    account.refusals["GetAWSDefaultServiceQuota"] = lambda _: {"Quota": {"Value": 0.0}}
    assert "(0) 0 are in use" in gate(account)("Create", ON_DEMAND)["Reason"]


def test_nodes_that_run_already_are_part_of_the_shape(gate):
    assert gate(Account(quota=96, running=2))("Create", ON_DEMAND)["Status"] == "SUCCESS"


def test_reservations_that_nobody_uses_count_towards_the_quota(gate):
    account = Account(quota=96)
    account.has(count=1)
    assert "(96) 48 are in use" in gate(account)("Create", ON_DEMAND)["Reason"]


# --- the probe -----------------------------------------------------------------------------------------


def test_a_probe_leaves_nothing(gate):
    account = Account()
    answer = gate(account)("Create", PROBED)
    assert "us-east-2a has 2 x g6.12xlarge free now" in answer["Data"]["Summary"]
    assert "CreateCapacityReservation" in account.calls
    assert not account.names()


def test_a_zone_without_capacity_fails_the_deployment(gate):
    account = Account()
    account.refusals["CreateCapacityReservation"] = RefusedError("InsufficientInstanceCapacity", "no g6")
    answer = gate(account)("Create", PROBED)
    assert answer["Status"] == "FAILED"
    assert answer["Reason"].startswith("capacity: us-east-2a has no 2 x g6.12xlarge free now (no g6). "
                                       "Fix: deploy to another zone")


def test_a_probe_that_is_not_permitted_stops_nobody(gate):
    account = Account()
    account.refusals["CreateCapacityReservation"] = RefusedError("UnauthorizedOperation")
    answer = gate(account)("Create", PROBED)
    assert (answer["Status"], "NOT CHECKED capacity" in answer["Data"]["Summary"]) == ("SUCCESS", True)


def test_nodes_that_run_are_not_probed_for(gate):
    account = Account(running=2)
    gate(account)("Create", PROBED)
    assert "CreateCapacityReservation" not in account.calls


def test_a_probe_whose_answer_is_lost_is_cancelled_all_the_same(gate):
    account = Account()

    def lost(params):
        account._create_capacity_reservation(params)
        return EndpointConnectionError(endpoint_url="https://ec2")

    account.refusals["CreateCapacityReservation"] = lost
    assert gate(account)("Create", PROBED)["Status"] == "SUCCESS"
    assert account.reservations
    assert not account.names()


def test_a_probe_that_cannot_be_cancelled_is_told_with_the_command(gate):
    account = Account()
    account.refusals["CancelCapacityReservation"] = RefusedError("InternalError")
    summary = gate(account)("Create", PROBED)["Data"]["Summary"]
    assert "their reservation is not cancelled" in summary
    assert "aws ec2 cancel-capacity-reservation --capacity-reservation-id cr-" in summary


# --- kind reserve --------------------------------------------------------------------------------------


def reserved(gate, account):
    made = gate(account)
    return made, made("Create", RESERVE)


def test_reserve_makes_a_reservation_that_ends_by_itself(gate):
    account = Account()
    _, answer = reserved(gate, account)
    found, = account.reservations.values()
    assert answer["PhysicalResourceId"] == answer["Data"]["ReservationId"] == found["CapacityReservationId"]
    assert found["EndDate"] == NOW.replace(minute=0) + timedelta(hours=25), "the full hour after 24 hours"
    assert account.names() == [OWNER]
    request = next(params for name, params in account.requests if name == "CreateCapacityReservation")
    assert (request["EndDateType"], request["InstanceMatchCriteria"]) == ("limited", "targeted")
    assert "holds 2 x g6.12xlarge until 2026-12-03T11:00Z" in answer["Data"]["Summary"]


def test_the_same_request_again_makes_no_second_one(gate):
    account = Account()
    made = gate(account)
    first = made("Create", RESERVE, request="same")
    assert made("Create", RESERVE, request="same")["PhysicalResourceId"] == first["PhysicalResourceId"]
    assert len(account.reservations) == 1


def test_a_repetition_that_ec2_takes_for_another_request_finds_the_first(gate):
    account = Account()
    shown = iter([{"CapacityReservations": []}, {"CapacityReservations": []}])

    def not_listed_yet(params):
        return next(shown, None) or account._describe_capacity_reservations(params)

    account.has(Tags=[{"Key": "eagleray:gate", "Value": OWNER}], EndDate=NOW + timedelta(hours=24))
    account.refusals |= {"CreateCapacityReservation": RefusedError("IdempotentParameterMismatch"),
                         "DescribeCapacityReservations": not_listed_yet}
    answer = gate(account)("Create", RESERVE)
    assert (answer["Status"], len(account.reservations)) == ("SUCCESS", 1), answer["Reason"]


def test_no_capacity_fails_and_what_is_left_is_released(gate):
    account = Account()
    account.refusals["CreateCapacityReservation"] = RefusedError("InsufficientInstanceCapacity")
    made, answer = reserved(gate, account)
    assert answer["Reason"].startswith("capacity: us-east-2a has no 2 x g6.12xlarge free now")
    # CloudFormation rolls back: it deletes what it was told
    account.has(Tags=[{"Key": "eagleray:gate", "Value": OWNER}])
    assert made("Delete", RESERVE, physical_id=answer["PhysicalResourceId"])["Status"] == "SUCCESS"
    assert not account.names()


@pytest.mark.parametrize(("code", "reason"), [
    ("VcpuLimitExceeded", "the vCPU quota has no room"), ("UnauthorizedOperation", "no permission to call"),
    ("UnsupportedOperation", "could not be reserved (UnsupportedOperation")])
def test_a_reservation_that_is_refused_says_why(gate, code, reason):
    account = Account()
    account.refusals["CreateCapacityReservation"] = RefusedError(code)
    assert reason in reserved(gate, account)[1]["Reason"]


def test_deleting_the_stack_gives_the_reservation_back(gate):
    account = Account()
    made, answer = reserved(gate, account)
    assert made("Delete", RESERVE, physical_id=answer["PhysicalResourceId"])["Status"] == "SUCCESS"
    assert not account.names()


def test_a_reservation_that_is_gone_already_is_no_obstacle(gate):
    made = gate(Account())
    assert made("Delete", RESERVE, physical_id="cr-00000000000000009")["Status"] == "SUCCESS"


def test_one_that_cannot_be_given_back_is_told_with_the_command(gate):
    account = Account()
    made, answer = reserved(gate, account)
    account.refusals["CancelCapacityReservation"] = RefusedError("InternalError")
    failed = made("Delete", RESERVE, physical_id=answer["PhysicalResourceId"])
    assert failed["Status"] == "FAILED"
    assert "is still billed until it ends" in failed["Reason"]
    assert "aws ec2 cancel-capacity-reservation" in failed["Reason"]


def test_other_hours_and_nodes_change_the_reservation_and_renew_nothing(gate):
    account = Account()
    made, answer = reserved(gate, account)
    changed = {**RESERVE, "Hours": "48", "Nodes": "3"}
    again = made("Update", changed, before=RESERVE, physical_id=answer["PhysicalResourceId"])
    found, = account.reservations.values()
    assert again["PhysicalResourceId"] == answer["PhysicalResourceId"]
    assert (found["TotalInstanceCount"], found["EndDate"]) == (3, NOW.replace(minute=0) + timedelta(hours=49))


def test_another_zone_makes_another_reservation_and_the_old_one_goes(gate):
    account = Account()
    made, answer = reserved(gate, account)
    moved = {**RESERVE, "Zone": "us-east-2b"}
    again = made("Update", moved, before=RESERVE, physical_id=answer["PhysicalResourceId"])
    assert again["PhysicalResourceId"] != answer["PhysicalResourceId"]
    made("Delete", RESERVE, physical_id=answer["PhysicalResourceId"])  # CloudFormation cleans up
    left, = [r for r in account.reservations.values() if r["State"] == "active"]
    assert left["AvailabilityZone"] == "us-east-2b"


def test_an_update_of_something_else_asks_nothing(gate):
    account = Account()
    answer = gate(account)("Update", ON_DEMAND, before=ON_DEMAND, physical_id="capacity-checked")
    assert (answer["Status"], account.calls) == ("SUCCESS", [])


def test_a_stack_that_rolls_back_passes_whatever_the_account_looks_like(gate):
    account = Account(quota=0, status="UPDATE_ROLLBACK_IN_PROGRESS")
    changed = {**ON_DEMAND, "Nodes": "1"}
    answer = gate(account)("Update", changed, before=ON_DEMAND, physical_id="capacity-checked")
    assert (answer["Status"], answer["Data"]["Summary"]) == ("SUCCESS", "as before")


def test_rolling_back_keeps_the_old_reservation_and_drops_the_new_one(gate):
    account = Account()
    made, answer = reserved(gate, account)
    moved = {**RESERVE, "Zone": "us-east-2b"}
    new = made("Update", moved, before=RESERVE, physical_id=answer["PhysicalResourceId"])
    account.status = "UPDATE_ROLLBACK_IN_PROGRESS"
    back = made("Update", RESERVE, before=moved, physical_id=new["PhysicalResourceId"])
    assert back["PhysicalResourceId"] == answer["PhysicalResourceId"]
    made("Delete", moved, physical_id=new["PhysicalResourceId"])
    left, = [r for r in account.reservations.values() if r["State"] == "active"]
    assert left["AvailabilityZone"] == "us-east-2a"


# --- the answer ----------------------------------------------------------------------------------------


def test_an_error_of_its_own_is_answered_too(gate):
    answer = gate(Account())("Create", {"Kind": "on-demand"})
    assert answer["Status"] == "FAILED"
    assert answer["Reason"].startswith("gate: KeyError: 'InstanceType'. Fix: see log group /aws/lambda/gate")


def test_aws_that_never_answers_ends_in_time(gate):
    account = Account()
    account.refusals["DescribeInstanceTypeOfferings"] = lambda _: threading.Event().wait(25) or {}
    started = time.monotonic()
    answer = gate(account)("Create", ON_DEMAND, seconds=14)
    assert answer["Reason"].startswith("time: AWS's APIs did not answer in time")
    assert time.monotonic() - started < 20


def test_an_answer_is_tried_again_and_stays_within_cloudformations_4_kb(gate, cloudformation):
    account = Account()
    account.refusals["CreateCapacityReservation"] = RefusedError("InsufficientInstanceCapacity", "x" * 9000)
    cloudformation.refuse = 2
    answer = gate(account)("Create", PROBED)
    _, content_type, size = cloudformation.answers[-1]
    assert answer["Status"] == "FAILED"
    assert size < 4096
    assert not content_type


def test_the_lambda_needs_nothing_that_its_runtime_lacks():
    import subprocess
    import sys

    code = ("import sys, eagleray.gate.handler; loaded = {m.split('.')[0] for m in sys.modules}; "
            "print(sorted(loaded & {'aws_cdk', 'jsii', 'pydantic', 'yaml', 'torch'}))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


