"""`eagleray up` with a cdk that deploys nothing (fake_cdk.py) and hand-written answers of AWS (fake_aws.py)."""

import io
import json
import os
import shutil
import signal
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_aws import FakeAws, RefusedError, no_stack
from rich.console import Console

from ops.context import Context
from ops.errors import CommandError, NothingToDoError, StoppedError
from ops.preflight import registry
from ops.up import command
from ops.up.command import NoCapacityError, Wanted, run
from ops.up.failure import needs
from settings import SettingsError, load_settings
from settings.placement import PLACEMENT_FILE, read_placement

GATE = ("Received response status [FAILED] from custom resource. Message returned: capacity: {} has no "
        "2 x g6.12xlarge free now (Insufficient capacity). Fix: deploy to another zone (RequestId: 0f1e)")
NODES = ("Resource handler returned message: \"[Issue(Code=AsgInstanceLaunchFailures, Message=Could not launch "
         "On-Demand Instances. InsufficientInstanceCapacity - We currently do not have sufficient g6.12xlarge "
         "capacity in the Availability Zone you requested ({}).)]\" (RequestToken: 1, HandlerErrorCode: null)")
ECHO = "Resource creation cancelled"


def gate_refuses(zone):
    """The first stack fails in its gate and is taken back whole."""
    return {"exit": 1, "stacks": {"eagleray-network": "ROLLBACK_COMPLETE"}, "events": {"eagleray-network": [
        ["Gate", "CREATE_FAILED", GATE.format(zone)], ["Vpc", "CREATE_FAILED", ECHO]]}}


def nodes_do_not_come(zone):
    """The network stands, the cluster is taken back."""
    return {"exit": 1, "stacks": {"eagleray-network": "CREATE_COMPLETE", "eagleray-cluster": "ROLLBACK_COMPLETE"},
            "events": {"eagleray-cluster": [["GpuNodegroup", "CREATE_FAILED", NODES.format(zone)]]}}


class Project:
    """A folder with a cdk.json, the fake cdk on the PATH, and an account whose stacks that cdk changes."""

    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.network_zones = ["us-east-2a", "us-east-2b", "us-east-2c"]
        self.answers = {}
        (folder / "bin").mkdir()
        cdk = folder / "bin" / "cdk"
        cdk.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "fake_cdk.py").read_text())
        cdk.chmod(0o755)
        (folder / "cdk.json").write_text("{}")
        self.world({})
        self.plan({})
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(registry, "manifest_status", lambda *_: 200)
        monkeypatch.setattr(command, "_PAUSE_SECONDS", 0)
        self.output = io.StringIO()

    def plan(self, zones):
        (self.folder / "plan.json").write_text(json.dumps(zones))

    def world(self, stacks):
        # whole or not at all: calls side by side read it, and answers side by side change it
        new = self.folder / f"world.json.{threading.get_ident()}"
        new.write_text(json.dumps({"stacks": stacks, "events": {}}))
        new.replace(self.folder / "world.json")

    def up(self, overrides=None, **wanted):
        self.output = io.StringIO()
        aws = FakeAws({"cloudformation.DescribeStacks": self._stacks, "ec2.DescribeSubnets": self._subnets,
                       "cloudformation.DescribeStackEvents": self._events, **self.answers})
        run(Wanted(Context(overrides=overrides), **wanted), Console(file=self.output, width=200), lambda: aws)
        return self.shown

    @property
    def shown(self):
        return self.output.getvalue()

    @property
    def calls(self):
        """Arguments of every cdk so far."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def zones(self):
        """Zones of every cdk deploy, in order."""
        return [_zone(call) for call in self.calls if call[0] == "deploy"]

    def _world(self):
        return json.loads((self.folder / "world.json").read_text())

    def _stacks(self, region, params):
        status = self._world()["stacks"].get(f"{region}/{params['StackName']}")
        if status is None:
            return no_stack(region, params)
        return {"Stacks": [{"StackName": params["StackName"], "StackStatus": status,
                            "CreationTime": datetime.now(UTC)}]}

    def _events(self, region, params):
        name = params["StackName"]
        found = self._world()["events"].get(f"{region}/{name}")
        if found is None:
            return no_stack(region, params)
        return {"StackEvents": [
            {"StackId": name, "StackName": name, "EventId": number, "LogicalResourceId": resource,
             "ResourceStatus": status, "ResourceStatusReason": reason, "Timestamp": datetime.now(UTC)}
            for number, resource, status, reason in reversed(found)]}

    def _subnets(self, region, _params):
        return {"Subnets": [{"AvailabilityZone": zone} for zone in self.network_zones if zone.startswith(region)]}


def _zone(arguments):
    overrides = next(a for a in arguments if a.startswith("set="))
    return overrides.rpartition("network.zone=")[2].split(",")[0]


@pytest.fixture
def project(tmp_path, monkeypatch):
    return Project(tmp_path, monkeypatch)


def placed(name="eagleray"):
    """Zone of later deployments from this folder."""
    return load_settings("l4", f"name={name}", PLACEMENT_FILE).network.zone


def test_the_first_zone_that_is_ready_is_deployed_to_and_remembered(project):
    shown = project.up(cdk_options=("--require-approval", "never"))
    call, = project.calls
    assert call[:2] == ["deploy", "--all"]
    assert call[-2:] == ["--require-approval", "never"]
    assert "config=l4" in call
    assert project.zones == ["us-east-2a"]
    assert "Deployed in us-east-2a." in shown
    remembered = read_placement(PLACEMENT_FILE, "eagleray")
    assert remembered
    assert remembered.status == "deployed"


def test_the_gate_s_no_leads_to_the_next_zone_and_a_later_deployment_finds_it(project):
    project.plan({"us-east-2a": gate_refuses("us-east-2a")})
    shown = project.up()
    assert project.zones == ["us-east-2a", "us-east-2b"]
    assert "us-east-2a: eagleray-network, Gate: " in shown
    assert "capacity: us-east-2a has no 2 x g6.12xlarge free now" in shown
    assert "Nothing is kept" in shown
    assert placed() == "us-east-2b"
    assert placed("other") == "us-east-2a"
    said = []
    load_settings("l4", None, PLACEMENT_FILE, said.append)
    assert said == ["zone us-east-2b from eagleray.placement.json, in place of us-east-2a; "
                    "delete the file to go back"]


def test_the_network_is_kept_with_all_its_zones_when_only_the_nodes_did_not_come(project):
    project.plan({"us-east-2a": nodes_do_not_come("us-east-2a")})
    shown = project.up()
    sets = [next(a for a in c if a.startswith("set=")) for c in project.calls]
    assert sets == [
        "set=region=us-east-2,network.zone=us-east-2a,network.second_zone=us-east-2b,network.spare_zones=[us-east-2c]",
        "set=region=us-east-2,network.zone=us-east-2b,network.second_zone=us-east-2a,network.spare_zones=[us-east-2c]"]
    assert "Kept for another zone of us-east-2: eagleray-network" in shown
    assert [c[0] for c in project.calls] == ["deploy", "deploy"]


def test_a_standing_network_limits_the_choice_to_its_zones(project):
    project.world({"us-east-2/eagleray-network": "CREATE_COMPLETE"})
    project.network_zones = ["us-east-2a", "us-east-2b"]
    project.plan({zone: nodes_do_not_come(zone) for zone in ("us-east-2a", "us-east-2b")})
    with pytest.raises(NoCapacityError, match="stands without subnets in us-east-2c"):
        project.up()
    assert project.zones == ["us-east-2a", "us-east-2b"]


def test_a_quota_is_of_the_region_so_its_other_zones_are_passed_over(project):
    project.plan({"us-east-2a": {"exit": 1, "stacks": {"eagleray-network": "CREATE_COMPLETE"}, "events": {
        "eagleray-cluster": [["GpuNodegroup", "CREATE_FAILED", "VcpuLimitExceeded: more vCPU than allowed"]]}}})
    shown = project.up(regions=("us-east-2", "us-west-2"))
    assert project.zones == ["us-east-2a", "us-west-2a"]
    assert [c[0] for c in project.calls] == ["deploy", "destroy", "deploy"]
    assert "Leaving us-east-2: removing what was made there" in shown
    assert load_settings("l4", None, PLACEMENT_FILE).region == "us-west-2"


def test_what_stood_in_a_region_before_is_not_removed(project):
    project.world({"us-east-2/eagleray-network": "CREATE_COMPLETE"})
    project.plan({"us-east-2a": nodes_do_not_come("us-east-2a")})
    shown = project.up(zones=("us-east-2a", "us-west-2b"))
    assert [c[0] for c in project.calls] == ["deploy", "deploy"]
    assert "eagleray-network stood before and stay" in shown
    assert "cdk destroy --all -c config=l4" in shown


def test_a_failure_that_is_no_lack_of_capacity_stops_and_the_next_up_goes_on_there(project):
    broken = {"exit": 1, "events": {"eagleray-platform": [["Chart", "CREATE_FAILED", "Error: timed out"]]}}
    project.plan({"us-east-2a": gate_refuses("us-east-2a"), "us-east-2b": broken})
    with pytest.raises(CommandError, match="eagleray-platform, Chart: Error: timed out\nThat is no lack") as error:
        project.up()
    assert error.value.exit_code == 1
    assert project.zones == ["us-east-2a", "us-east-2b"]
    project.plan({})
    project.up()
    assert project.zones[2:] == ["us-east-2b"]


def test_events_of_an_earlier_attempt_do_not_count(project):
    project.plan({"us-east-2a": gate_refuses("us-east-2a"), "us-east-2b": gate_refuses("us-east-2b"),
                  "us-east-2c": {"exit": 1, "says": "Aborted by user"}})
    with pytest.raises(CommandError, match="exit code 1 before any resource failed"):
        project.up()


def test_without_any_capacity_every_zone_is_told_with_its_reason(project):
    project.plan({zone: gate_refuses(zone) for zone in project.network_zones})
    with pytest.raises(NoCapacityError) as error:
        project.up()
    assert error.value.exit_code == 3
    for zone in project.network_zones:
        assert f"  {zone}: eagleray-network, Gate: " in str(error.value)
    assert not PLACEMENT_FILE.exists()


def test_what_is_left_standing_at_the_end_is_told_with_the_command_that_removes_it(project):
    project.plan({zone: nodes_do_not_come(zone) for zone in project.network_zones})
    with pytest.raises(NoCapacityError, match=r"eagleray-network stand in us-east-2.*cdk destroy --all"):
        project.up()
    with pytest.raises(NoCapacityError):
        project.up()  # starts over: capacity comes and goes
    assert len(project.zones) == 6


def test_zones_that_preflight_finds_wanting_are_not_tried(project):
    def only_c(region, params):
        kind = params["Filters"][0]["Values"][0]
        letters = "c" if kind == "g6.12xlarge" else "abc"
        return {"InstanceTypeOfferings": [{"InstanceType": kind, "LocationType": "availability-zone",
                                           "Location": f"{region}{letter}"} for letter in letters]}

    project.answers["ec2.DescribeInstanceTypeOfferings"] = only_c
    project.up()
    assert project.zones == ["us-east-2c"]


def test_where_preflight_fails_everywhere_nothing_is_deployed(project):
    project.answers["ssm.GetParameter"] = RefusedError("ParameterNotFound")
    with pytest.raises(CommandError, match="us-east-2a: bootstrap: the CDK is not set up") as error:
        project.up()
    assert error.value.exit_code == 1
    assert not project.calls
    assert not PLACEMENT_FILE.exists()


def test_a_call_of_up_s_own_that_is_not_permitted_is_one_line(project):
    project.world({"us-east-2/eagleray-network": "CREATE_COMPLETE"})
    project.answers["ec2.DescribeSubnets"] = RefusedError(
        "UnauthorizedOperation", "User: ann is not authorized to perform: ec2:DescribeSubnets because")
    with pytest.raises(CommandError, match=r"^not permitted: ec2:DescribeSubnets; allow your role the action ec2:"):
        project.up()
    assert not project.calls


def test_credentials_that_expire_meanwhile_are_one_line_and_the_next_up_goes_on(project):
    project.plan({"us-east-2a": gate_refuses("us-east-2a")})

    def events(region, params):
        return RefusedError("ExpiredToken") if project.calls else project._events(region, params)

    project.answers["cloudformation.DescribeStackEvents"] = events
    with pytest.raises(CommandError, match=r"expired; sign in.*; eagleray up goes on from here"):
        project.up()


def test_zones_are_tried_in_the_order_given_by_name_or_id(project):
    project.plan({"us-east-2c": gate_refuses("us-east-2c")})
    project.up(zones=("use2-az3", "us-east-2a"))
    assert project.zones == ["us-east-2c", "us-east-2a"]


def test_a_cluster_that_stands_is_not_moved_unless_zones_are_named(project):
    standing = {f"us-east-2/eagleray-{part}": "CREATE_COMPLETE" for part in ("network", "cluster")}
    project.world(standing)
    failed_update = {"exit": 1, "stacks": {"eagleray-cluster": "UPDATE_ROLLBACK_COMPLETE"}, "events": {
        "eagleray-cluster": [["GpuNodegroup", "UPDATE_FAILED", NODES.format("us-east-2a")]]}}
    project.plan({"us-east-2a": failed_update})
    with pytest.raises(NoCapacityError, match="the cluster stands in us-east-2a, and moving it replaces all nodes"):
        project.up()
    assert project.zones == ["us-east-2a"]
    project.up(zones=("us-east-2b",))
    assert project.zones == ["us-east-2a", "us-east-2b"]


def test_a_zone_in_set_is_the_only_one_and_nothing_is_remembered(project):
    project.plan({"us-east-2b": gate_refuses("us-east-2b")})
    with pytest.raises(NoCapacityError):
        project.up("network.zone=us-east-2b,network.second_zone=us-east-2a")
    assert project.zones == ["us-east-2b"]
    assert not PLACEMENT_FILE.exists()
    with pytest.raises(NothingToDoError, match=r"set= names network\.zone, .*and --regions or --azs"):
        project.up("network.zone=us-east-2b,network.second_zone=us-east-2a", zones=("us-east-2a",))


def test_a_deployment_that_is_still_going_on_is_waited_for(project):
    project.world({"us-east-2/eagleray-network": "CREATE_IN_PROGRESS"})
    asked = []

    def stacks(region, params):
        asked.append(params["StackName"])
        if asked.count("eagleray-network") > 2:
            project.world({"us-east-2/eagleray-network": "CREATE_COMPLETE"})
        return project._stacks(region, params)

    project.answers["cloudformation.DescribeStacks"] = stacks
    assert "Waiting for eagleray-network" in project.up()
    assert project.zones == ["us-east-2a"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_cdk_and_the_next_up_goes_on_there(project, number):
    project.plan({"us-east-2a": gate_refuses("us-east-2a"), "us-east-2b": {"hangs": True}})

    def stop_when_started():
        for _ in range(600):
            if (project.folder / "started").exists():
                return os.kill(os.getpid(), number)
            time.sleep(0.05)

    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)  # as in a terminal, also where the tests run under nohup
    threading.Thread(target=stop_when_started, daemon=True).start()
    try:
        with pytest.raises(StoppedError, match=r"CloudFormation goes on by itself.*cdk destroy --all") as stop:
            project.up()
    finally:
        signal.signal(number, before)
    assert stop.value.exit_code == 128 + number
    assert not _runs(int((project.folder / "started").read_text()))
    project.plan({})
    project.up()
    assert project.zones == ["us-east-2a", "us-east-2b", "us-east-2b"]


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_without_cdk_or_outside_of_the_project_nothing_starts(project, monkeypatch):
    (project.folder / "cdk.json").unlink()
    with pytest.raises(NothingToDoError, match=r"no cdk\.json here"):
        project.up()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(NothingToDoError, match="cdk is not on the PATH; run make setup"):
        project.up()


@pytest.mark.parametrize("text", [
    "{", "[]", '{"deployments": {"eagleray": {}}}', '{"deployments": {"eagleray": 5}}',
    '{"deployments": {"eagleray": {"region": 1, "zone": 2, "second_zone": 3, "spare_zones": [], '
    '"instead_of": ["a", "b"], "status": "trying", "tried": {}}}}'])
def test_a_damaged_placement_is_one_clear_error(project, text):
    PLACEMENT_FILE.write_text(text)
    with pytest.raises(NothingToDoError, match=r"^eagleray\.placement\.json: not as eagleray up writes it; delete"):
        project.up()
    with pytest.raises(SettingsError, match="delete the file"):
        load_settings("l4", None, PLACEMENT_FILE)


def test_a_placement_made_for_other_settings_is_refused_and_set_wins_over_it(project):
    project.plan({"us-east-2a": gate_refuses("us-east-2a")})
    project.up()
    moved = project.folder / "mine.yaml"
    moved.write_text("network: {zone: us-east-2c, second_zone: us-east-2a}\n")
    with pytest.raises(SettingsError, match="us-east-2b was chosen in place of us-east-2a, and the settings now "
                                            "say us-east-2c; delete the file"):
        load_settings(str(moved), None, PLACEMENT_FILE)
    said = []
    explicit = "network.zone=us-east-2c,network.second_zone=us-east-2a"
    assert load_settings("l4", explicit, PLACEMENT_FILE, said.append).network.zone == "us-east-2c"
    assert "is not used: set= names network.zone, network.second_zone" in said[0]


@pytest.mark.parametrize(("reason", "place"), [
    (GATE.format("us-east-2a"), "zone"), (NODES.format("us-east-2a"), "zone"),
    ("offering: us-east-2e has no g6.12xlarge. Fix: deploy to us-east-2a", "zone"),
    ("Your requested instance type (p5.48xlarge) is not supported in your requested Availability Zone", "zone"),
    ("There is no Spot capacity available that matches your request", "zone"),
    ("quota: 2 x g6.12xlarge need 96 vCPU; of the quota 'G' (0) 0 are in use", "region"),
    ("offering: no zone of us-east-2 that this account sees has p5.48xlarge", "region"),
    ("The maximum number of addresses has been reached. (AddressLimitExceeded)", "region"),
    ("The maximum number of VPCs has been reached. (VpcLimitExceeded)", "region"),
    ("reservation: cr-1 is expired, not active. Fix: use another one", "mending"),
    ("User: arn:aws:iam::1:user/ann is not authorized to perform: eks:CreateCluster", "mending"),
])
def test_reasons_of_cloudformation_say_whether_another_place_helps(reason, place):
    assert needs(reason) == place
