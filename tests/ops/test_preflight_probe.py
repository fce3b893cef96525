"""`eagleray preflight --probe`: what it reserves it cancels, whatever happens meanwhile."""

import os
import signal
import threading
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import EndpointConnectionError
from fake_aws import RefusedError, reservation
from preflight_run import Preflight

from ops.errors import StoppedError
from ops.preflight import command
from ops.preflight import probe as probing

pytestmark = pytest.mark.usefixtures("public_registry")


class Reservations:
    """EC2 as far as a probe needs it: what was made, and what is left of it."""

    def __init__(self, refuse=None, when_made=lambda: None):
        self.made, self.left, self._refuse, self._when_made = [], {}, refuse, when_made

    def answers(self):
        def group(_region, params):
            name = params["GroupName"]
            return {"PlacementGroup": {"GroupName": name, "GroupArn": f"arn:aws:ec2:::placement-group/{name}"}}

        return {
            "ec2.CreatePlacementGroup": group,
            "ec2.DeletePlacementGroup": {},
            "ec2.CreateCapacityReservation": self._create,
            "ec2.CancelCapacityReservation": self._cancel,
            "ec2.DescribeCapacityReservations": lambda *_: {"CapacityReservations": list(self.left.values())},
        }

    def _create(self, _region, params):
        self.made.append(params)
        if self._refuse:
            return self._refuse
        found = reservation(AvailabilityZone=params["AvailabilityZone"], TotalInstanceCount=params["InstanceCount"])
        self.left[found["CapacityReservationId"]] = found
        self._when_made()
        return {"CapacityReservation": found}

    def _cancel(self, _region, params):
        self.left.pop(params["CapacityReservationId"], None)
        return {"Return": True}


def probed(ec2, code, **more):
    preflight = Preflight(ec2.answers(), probe=more.pop("probe", "yes"), width=300, **more)
    assert preflight.run() == code, preflight.shown
    return preflight


def test_a_probe_reserves_the_exact_shape_and_cancels_it():
    ec2 = Reservations()
    shown = probed(ec2, 0).shown
    asked, = ec2.made
    assert (asked["InstanceType"], asked["InstanceCount"]) == ("g6.12xlarge", 2)
    assert asked["AvailabilityZone"] == "us-east-2a"
    assert asked["EndDateType"] == "limited"
    assert asked["EndDate"] - datetime.now(UTC) < timedelta(hours=2, minutes=1)
    assert asked["TagSpecifications"][0]["Tags"][0]["Key"] == "eagleray:gate"
    assert "reserved as cr-0123456789abcdef0" in shown
    assert "us-east-2a has 2 x g6.12xlarge free now" in shown
    assert not ec2.left


def test_a_probe_asks_first_and_a_no_makes_nothing():
    ec2, questions = Reservations(), []
    shown = probed(ec2, 0, probe="ask", confirm=questions.append).shown
    assert "Reserve 2 x g6.12xlarge in us-east-2a and cancel that at once?" in questions[0]
    assert "No probe made." in shown
    assert not ec2.made


def test_a_zone_without_capacity_fails_the_probe():
    ec2 = Reservations(refuse=RefusedError("InsufficientInstanceCapacity", "no g6 left"))
    assert "us-east-2a has no 2 x g6.12xlarge free now (no g6 left)" in probed(ec2, 1).shown


def test_a_probe_that_is_not_permitted_is_unknown():
    assert "not permitted" in probed(Reservations(refuse=RefusedError("UnauthorizedOperation")), 3).shown


def test_where_checks_fail_nothing_is_reserved():
    ec2 = Reservations()
    preflight = Preflight({**ec2.answers(), "ssm.GetParameter": RefusedError("ParameterNotFound")}, probe="yes")
    assert preflight.run() == 1
    assert not ec2.made


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_probe_cancels_what_was_reserved(number):
    ec2 = Reservations(when_made=lambda: os.kill(os.getpid(), number))
    preflight = Preflight(ec2.answers(), probe="yes")
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(StoppedError) as stop:
            preflight.run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.value.exit_code == 128 + number
    assert ec2.made
    assert not ec2.left


def test_a_signal_before_the_call_is_waited_for_leaves_nothing(monkeypatch):
    ec2, asked = Reservations(), threading.Event()
    ec2._when_made = asked.set

    class Interrupted(threading.Thread):
        def start(self):
            super().start()
            asked.wait(20)
            os.kill(os.getpid(), signal.SIGTERM)

    preflight = Preflight(ec2.answers(), probe="yes")
    run_survey = command.survey

    def then_interrupt(*arguments):
        found = run_survey(*arguments)
        monkeypatch.setattr(probing.threading, "Thread", Interrupted)
        return found

    monkeypatch.setattr(command, "survey", then_interrupt)
    with pytest.raises(StoppedError):
        preflight.run()
    assert ec2.made
    assert not ec2.left


def test_an_answer_that_was_lost_leaves_no_reservation(monkeypatch):
    monkeypatch.setattr(probing, "_PAUSE_SECONDS", 0)
    ec2 = Reservations()
    answers = ec2.answers()

    def lost(region, params):
        ec2._create(region, params)
        raise EndpointConnectionError(endpoint_url="https://ec2.us-east-2.amazonaws.com")

    preflight = Preflight({**answers, "ec2.CreateCapacityReservation": lost}, probe="yes")
    assert preflight.run() == 3
    assert ec2.made
    assert not ec2.left


def test_a_reservation_that_cannot_be_cancelled_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr(probing, "_PAUSE_SECONDS", 0)
    ec2 = Reservations()
    preflight = Preflight({**ec2.answers(), "ec2.CancelCapacityReservation": RefusedError("InternalError")},
                          probe="yes", width=300)
    preflight.run()
    assert "aws ec2 cancel-capacity-reservation" in preflight.shown
    assert "cr-0123456789abcdef0" in preflight.shown
