"""The capacity gate as a construct: what is deployed, what it may do, what it is asked."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from eagleray.capacity import Capacity
from eagleray.capacity_gate import CapacityGate

GATE = Path(__file__).resolve().parents[2] / "constructs" / "eagleray" / "gate"
RESOURCE = "Custom::EagleRayCapacityGate"
Deployed = tuple[Template, Path]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Capacity], Deployed]:
    """The template for a capacity, and the folder of the assembly, its assets included."""
    def build(capacity: Capacity, instance_type: str = "g6.12xlarge") -> Deployed:
        outdir = tmp_path_factory.mktemp("cdk.out")
        app = cdk.App(outdir=str(outdir), context={"@aws-cdk/core:defaultCrossStackReferences": "strong"})
        stack = cdk.Stack(app, "Stack")
        gate = CapacityGate(stack, "Gate", capacity=capacity, cluster_name="eagleray", instance_type=instance_type,
                            nodes=2, zone="us-east-2a", log_days=5)
        user = cdk.Stack(app, "User")
        cdk.CfnResource(user, "Uses", type="Test::Uses", properties={
            "Reservation": gate.granted.reservation_target})
        template = Template.from_json(app.synth().get_stack_by_name("Stack").template)
        return template, outdir
    return build


@pytest.fixture(scope="module")
def reserving(deployed: Callable[[Capacity], Deployed]) -> Deployed:
    return deployed(Capacity.reserve(24, placement_group="group"))


def only(template: Template, kind: str) -> dict:
    resource, = template.find_resources(kind).values()
    return resource["Properties"]


def allowed(template: Template) -> dict[str, list[dict]]:
    """Statements for each action."""
    found: dict[str, list[dict]] = {}
    for statement in only(template, "AWS::IAM::Policy")["PolicyDocument"]["Statement"]:
        actions = statement["Action"]
        for action in [actions] if isinstance(actions, str) else actions:
            found.setdefault(action, []).append(statement)
    return found


def test_the_lambda_holds_the_tested_files_and_nothing_else(reserving):
    template, outdir = reserving
    key = only(template, "AWS::Lambda::Function")["Code"]["S3Key"].removesuffix(".zip")
    asset = outdir / f"asset.{key}"
    files = {path.relative_to(asset): path for path in asset.rglob("*") if path.is_file()}
    ours = {Path("eagleray/gate") / path.name: path for path in GATE.glob("*.py")}
    assert set(files) == {Path("eagleray/__init__.py"), *ours}
    assert all(files[name].read_bytes() == path.read_bytes() for name, path in ours.items())


def test_the_handler_is_found_where_lambda_looks_and_needs_only_boto3(reserving):
    template, outdir = reserving
    function = only(template, "AWS::Lambda::Function")
    module, name = function["Handler"].rsplit(".", 1)
    asset = outdir / f"asset.{function['Code']['S3Key'].removesuffix('.zip')}"
    # As in Lambda: the asset is the first place that is looked at, and no CDK is there.
    script = (f"import sys; sys.path.insert(0, {str(asset)!r}); sys.modules['aws_cdk'] = None; "
              f"import {module} as m; assert callable(m.{name}); print(m.__file__)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(asset))


def test_it_gives_up_in_time_and_keeps_its_log_for_a_while(reserving):
    template, _ = reserving
    function, resource = only(template, "AWS::Lambda::Function"), only(template, RESOURCE)
    assert function["Timeout"] == 60
    # Longer than the Lambda, so that its answer counts; CloudFormation's own limit is an hour.
    assert function["Timeout"] < int(resource["ServiceTimeout"]) <= 180
    assert only(template, "AWS::Logs::LogGroup")["RetentionInDays"] == 5
    group, = template.find_resources("AWS::Logs::LogGroup")
    assert function["LoggingConfig"] == {"LogGroup": {"Ref": group}}
    assert function["Runtime"] == "python3.13"


def test_it_is_asked_only_once_it_may_ask(reserving):
    template, _ = reserving
    policy, = template.find_resources("AWS::IAM::Policy")
    (function_id, function), = template.find_resources("AWS::Lambda::Function").items()
    assert policy in function["DependsOn"]
    assert only(template, RESOURCE)["ServiceToken"] == {"Fn::GetAtt": [function_id, "Arn"]}


READS = {"servicequotas:GetServiceQuota", "servicequotas:GetAWSDefaultServiceQuota", "ec2:DescribeInstances",
         "ec2:DescribeInstanceTypes", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeCapacityReservations",
         "cloudformation:DescribeStacks"}
LOGS = {"logs:CreateLogStream", "logs:PutLogEvents"}
MAKES = {"ec2:CreateCapacityReservation", "ec2:CreateTags"}


@pytest.mark.parametrize(("capacity", "more"), [
    (Capacity.on_demand(), set()),
    (Capacity.spot(), set()),
    (Capacity.reservation("cr-12345678"), set()),
    (Capacity.probed_on_demand(), MAKES),
    (Capacity.reserve(24), MAKES | {"ec2:ModifyCapacityReservation"}),
], ids=["on-demand", "spot", "reservation", "probed", "reserve"])
def test_it_may_do_what_its_kind_needs_and_no_more(deployed, capacity, more):
    actions = allowed(deployed(capacity)[0])
    assert set(actions) == READS | LOGS | {"ec2:CancelCapacityReservation"} | more


def test_it_may_change_and_cancel_only_what_its_own_stack_made(reserving):
    actions = allowed(reserving[0])
    ours = {"Fn::Join": ["", [{"Ref": "AWS::StackId"}, "/*"]]}
    for action in ("ec2:CancelCapacityReservation", "ec2:ModifyCapacityReservation"):
        statement, = actions[action]
        assert statement["Condition"] == {"StringLike": {"aws:ResourceTag/eagleray:gate": ours}}
    create, in_group = actions["ec2:CreateCapacityReservation"]
    assert create["Condition"] == {"StringLike": {"aws:RequestTag/eagleray:gate": ours}}
    assert json.dumps(in_group["Resource"]).endswith(':placement-group/group"]]}')
    tags, = actions["ec2:CreateTags"]
    assert tags["Condition"] == {"StringEquals": {"ec2:CreateAction": "CreateCapacityReservation"}}
    stacks, = actions["cloudformation:DescribeStacks"]
    assert stacks["Resource"] == {"Ref": "AWS::StackId"}
    # Only what reads is allowed on everything.
    everywhere = {action for action, statements in actions.items() for s in statements if s["Resource"] == "*"}
    assert everywhere == READS - {"cloudformation:DescribeStacks"}


def test_it_is_asked_for_shape_quota_and_kind(deployed):
    asked = only(deployed(Capacity.spot("group"))[0], RESOURCE)
    asked = {name: asked[name] for name in asked if name not in ("ServiceToken", "ServiceTimeout")}
    arn = asked.pop("PlacementGroupArn")
    assert json.dumps(arn).endswith(':placement-group/group"]]}')
    assert asked == {
        "Kind": "spot", "InstanceType": "g6.12xlarge", "Nodes": 2, "Zone": "us-east-2a", "Vcpu": 48,
        "QuotaCode": "L-3819A6DF", "QuotaName": "All G and VT Spot Instance Requests", "QuotaTypes": ["g*", "vt*"],
        "Cluster": "eagleray", "PlacementGroup": "group"}


def test_the_reservation_may_become_another_while_the_cluster_uses_it(reserving):
    template, outdir = reserving
    uses = json.loads((outdir / "User.template.json").read_text())["Resources"]["Uses"]["Properties"]
    target = json.dumps(uses["Reservation"])
    assert "GetStackOutput" in target
    assert "ImportValue" not in target
    assert not [o for o in template.to_json()["Outputs"].values() if "Export" in o]


def test_a_reservation_that_is_not_made_yet_cannot_be_used():
    with pytest.raises(ValueError, match="use what a CapacityGate granted"):
        _ = Capacity.reserve(24).reservation_target
