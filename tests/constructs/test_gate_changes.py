"""The gate over the life of a stack: what uses a quota, updates, new rounds, and every way back."""

from datetime import timedelta

import pytest
from gate_aws import BLOCK, NAMED, NOW, ON_DEMAND, PROBED, RESERVE, Account, RefusedError

SPOT = {**ON_DEMAND, "Kind": "spot", "QuotaCode": "L-3819A6DF"}
FULL_HOUR = NOW.replace(minute=0) + timedelta(hours=1)


def passed(answer):
    assert answer["Status"] == "SUCCESS", answer["Reason"]
    return answer["PhysicalResourceId"]


def billed(account):
    return [number for number, found in account.reservations.items() if found["State"] == "active"]


# --- what uses a quota ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("properties", "more", "used"), [
    (ON_DEMAND, {}, 48),
    (ON_DEMAND, {"cluster": "ours"}, 0),
    (ON_DEMAND, {"cluster": "theirs"}, 48),
    (ON_DEMAND, {"lifecycle": "spot"}, 0),
    (ON_DEMAND, {"name": "p5.48xlarge"}, 0),
    (SPOT, {}, 0),
    (SPOT, {"lifecycle": "spot"}, 48),
])
def test_only_others_of_the_family_and_market_use_the_quota(gate, properties, more, used):
    account = Account(quota=96)
    account.starts(1, **more)
    answer = gate(account)("Create", properties)
    assert answer["Status"] == ("FAILED" if used else "SUCCESS")
    assert f"(96) {used} are in use" in answer["Reason"] + answer["Data"].get("Summary", "")


def test_a_command_asks_for_as_much_quota_as_is_missing(gate):
    account = Account(quota=96)
    account.starts(3)
    assert gate(account)("Create", ON_DEMAND)["Reason"].endswith(
        "request-service-quota-increase --region us-east-2 --service-code ec2 --quota-code L-DB2E81BA "
        "--desired-value 240")


def test_a_quota_that_nobody_knows_is_told_and_stops_nobody(gate):
    unknown = {name: value for name, value in SPOT.items() if name != "QuotaCode"}
    assert "NOT CHECKED quota: which quota counts" in gate(Account())("Create", unknown)["Data"]["Summary"]


def test_a_capacity_block_uses_no_quota(gate):
    account = Account(quota=0)
    account.has(ReservationType="capacity-block")
    passed(gate(account)("Create", BLOCK))


def test_all_that_is_wrong_is_said_at_once(gate):
    reason = gate(Account(quota=0, zones=("us-east-2b",)))("Create", PROBED)["Reason"]
    assert reason.startswith("offering: ")
    assert "; quota: " in reason


def test_a_new_roles_permission_is_waited_for(gate):
    account, refusals = Account(quota=0), [RefusedError("AccessDeniedException")] * 2

    def late(_):
        return refusals.pop() if refusals else {"Quota": {"Value": 0.0}}

    account.refusals["GetServiceQuota"] = late
    assert gate(account)("Create", ON_DEMAND)["Reason"].startswith("quota: ")


# --- nodes that run already ----------------------------------------------------------------------------


def test_only_the_missing_nodes_are_probed_for(gate):
    account = Account(running=2)
    gate(account)("Update", {**PROBED, "Nodes": "3"}, before=PROBED, physical_id="capacity-checked")
    asked, = [params for name, params in account.requests if name == "CreateCapacityReservation"]
    assert asked["InstanceCount"] == 1


@pytest.mark.parametrize(("inside", "status"), [(True, "SUCCESS"), (False, "FAILED")])
def test_nodes_that_sit_in_the_reservation_keep_their_places(gate, inside, status):
    account = Account()
    number = account.has(AvailableInstanceCount=0)
    account.starts(2, cluster="ours", reservation=number if inside else None)
    changed = {**NAMED, "PlacementGroupArn": "changed"}
    assert gate(account)("Update", changed, before=NAMED, physical_id="capacity-checked")["Status"] == status


# --- a reservation over time ---------------------------------------------------------------------------


def test_a_reservation_that_is_pending_is_waited_for(gate, monkeypatch):
    account, look = Account(), Account._describe_capacity_reservations
    account.refusals["CreateCapacityReservation"] = lambda params: {"CapacityReservation": {
        **account._create_capacity_reservation(params)["CapacityReservation"], "State": "pending"}}
    seen = []
    account.refusals["DescribeCapacityReservations"] = lambda params: seen.append(params) or look(account, params)
    made = passed(gate(account)("Create", RESERVE))
    assert seen[-1] == {"CapacityReservationIds": [made]}


def test_hours_count_from_when_it_was_made(gate):
    account = Account()
    made = gate(account)
    number = passed(made("Create", RESERVE))
    account.now += timedelta(hours=5)
    longer, shorter = {**RESERVE, "Hours": "48"}, {**RESERVE, "Hours": "1"}
    passed(made("Update", longer, before=RESERVE, physical_id=number))
    assert account.reservations[number]["EndDate"] == FULL_HOUR + timedelta(hours=48)
    # Fewer than have passed: as soon as EC2 lets it end.
    passed(made("Update", shorter, before=longer, physical_id=number))
    assert account.reservations[number]["EndDate"] == FULL_HOUR + timedelta(hours=5)


def test_more_nodes_are_added_to_it_without_a_new_end(gate):
    account = Account()
    made = gate(account)
    number = passed(made("Create", RESERVE))
    end = account.reservations[number]["EndDate"]
    account.now += timedelta(hours=5)
    passed(made("Update", {**RESERVE, "Nodes": "4"}, before=RESERVE, physical_id=number))
    assert (account.reservations[number]["TotalInstanceCount"], account.reservations[number]["EndDate"]) == (4, end)
    assert billed(account) == [number]


def test_a_round_reserves_again_only_once_the_last_one_has_ended(gate):
    account = Account()
    made = gate(account)
    number = passed(made("Create", RESERVE))
    end = account.reservations[number]["EndDate"]
    second, third = {**RESERVE, "Round": "2"}, {**RESERVE, "Round": "3"}
    assert passed(made("Update", second, before=RESERVE, physical_id=number)) == number
    assert account.reservations[number]["EndDate"] == end
    account.reservations[number]["State"] = "expired"
    account.now = end + timedelta(hours=3)
    again = passed(made("Update", third, before=second, physical_id=number))
    assert account.reservations[again]["EndDate"] > account.now + timedelta(hours=23)
    passed(made("Delete", second, physical_id=number))  # CloudFormation cleans up what was replaced
    assert billed(account) == [again]


def test_leaving_kind_reserve_gives_back_and_entering_it_keeps(gate):
    account = Account()
    made = gate(account)
    number = passed(made("Update", RESERVE, before=PROBED, physical_id="capacity-checked"))
    passed(made("Delete", PROBED, physical_id="capacity-checked"))  # CloudFormation cleans up
    assert billed(account) == [number], "what was only checked takes nothing along"
    assert passed(made("Update", PROBED, before=RESERVE, physical_id=number)) == "capacity-checked"
    assert billed(account) == [number], "not before the update has succeeded, and not by the probe"
    passed(made("Delete", RESERVE, physical_id=number))
    assert not billed(account)


def test_an_unknown_quota_keeps_nobody_from_reserving_and_reserves_once(gate):
    account = Account()
    account.refusals["GetServiceQuota"] = RefusedError("AccessDeniedException")
    answer = gate(account)("Create", RESERVE)
    assert billed(account) == [passed(answer)]
    assert "NOT CHECKED quota" in answer["Data"]["Summary"]


# --- the way back --------------------------------------------------------------------------------------


def test_going_back_gives_the_reservation_its_old_size_and_end(gate):
    account = Account()
    made = gate(account)
    number = passed(made("Create", RESERVE))
    before = dict(account.reservations[number])
    more = {**RESERVE, "Nodes": "4", "Hours": "48"}
    passed(made("Update", more, before=RESERVE, physical_id=number))
    account.status = "UPDATE_ROLLBACK_IN_PROGRESS"
    assert passed(made("Update", RESERVE, before=more, physical_id=number)) == number
    assert account.reservations[number]["TotalInstanceCount"] == before["TotalInstanceCount"]
    assert account.reservations[number]["EndDate"] == before["EndDate"]


def test_going_back_drops_a_reservation_that_cloudformation_never_heard_of(gate):
    account = Account()
    made = gate(account)
    old = passed(made("Create", RESERVE))
    moved = {**RESERVE, "Zone": "us-east-2b"}
    made("Update", moved, before=RESERVE, physical_id=old)
    account.status = "UPDATE_ROLLBACK_IN_PROGRESS"
    assert passed(made("Update", RESERVE, before=moved, physical_id=old)) == old
    assert billed(account) == [old]


def test_a_stack_is_never_stuck_on_its_way_back(gate):
    account = Account(status="UPDATE_ROLLBACK_IN_PROGRESS")
    made, more = gate(account), {**RESERVE, "Nodes": "4"}
    number = passed(made("Create", RESERVE))
    account.reservations[number]["State"] = "expired"
    assert passed(made("Update", RESERVE, before=more, physical_id=number)) == number
    account.refusals["DescribeCapacityReservations"] = RefusedError("InternalError")
    assert passed(made("Update", RESERVE, before=more, physical_id=number)) == number


def test_not_knowing_whether_it_goes_back_means_forward(gate):
    account = Account(quota=0)
    account.refusals["DescribeStacks"] = RefusedError("AccessDenied")
    changed = {**ON_DEMAND, "Nodes": "3"}
    answer = gate(account)("Update", changed, before=ON_DEMAND, physical_id="capacity-checked")
    assert answer["Reason"].startswith("quota: ")


def test_a_release_that_cannot_look_says_so(gate):
    account = Account()
    account.refusals["DescribeCapacityReservations"] = RefusedError("InternalError")
    answer = gate(account)("Delete", RESERVE, physical_id="capacity-refused")
    assert answer["Reason"].startswith("release: not known whether a reservation is left")


def test_a_dead_address_ends_the_lambda_with_an_error_so_that_it_is_run_again(gate, cloudformation):
    cloudformation.refuse = 3
    with pytest.raises(OSError, match="503"):
        gate(Account())("Create", ON_DEMAND)
