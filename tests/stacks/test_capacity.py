"""Each kind of capacity as CloudFormation gets it: gate, launch template, nodegroup, and what makes nodes come."""

import json

import pytest
from test_cluster_stack import gpu, named

RESERVATION = "gpu.capacity={kind: reservation, id: cr-0123456789abcdef0"


@pytest.fixture(scope="session")
def synth_spot(synth):
    return synth("l4", "gpu.capacity.kind=spot")


def gate(synth):
    return synth.only("NetworkStack", "Custom::EagleRayCapacityGate")


def actions(synth):
    """Action → resources and conditions of the gate's role."""
    found = {}
    for name, policy in synth.resources("NetworkStack", "AWS::IAM::Policy").items():
        if not name.startswith("Gate"):
            continue
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            allowed = statement["Action"]
            for action in [allowed] if isinstance(allowed, str) else allowed:
                found.setdefault(action, []).append(statement)
    return found


# --- the gate ------------------------------------------------------------------------------------------


def test_nothing_that_costs_is_made_before_the_gate_has_passed(synth_l4):
    name, = synth_l4.resources("NetworkStack", "Custom::EagleRayCapacityGate")
    for kind in ("AWS::EC2::NatGateway", "AWS::EC2::EIP", "AWS::EC2::VPC"):
        for resource in synth_l4.resources("NetworkStack", kind).values():
            assert name in resource["DependsOn"], kind
    order = json.loads((synth_l4.outdir / "manifest.json").read_text())["artifacts"]["ClusterStack"]["dependencies"]
    assert "NetworkStack" in order


def test_the_gate_is_asked_for_the_very_nodes(synth_l4):
    asked = gate(synth_l4)
    wanted = {"Kind": "on-demand", "InstanceType": "g6.12xlarge", "Nodes": 2, "Zone": "us-east-2a", "Vcpu": 48,
              "Cluster": "eagleray", "Probe": "true", "QuotaCode": "L-DB2E81BA"}
    assert {name: asked[name] for name in wanted} == wanted
    assert asked["ServiceTimeout"] == "180", "CloudFormation does not wait an hour for a Lambda that is lost"


def test_the_gates_lambda_ends_within_a_minute_and_its_log_leaves_with_the_stack(synth_l4):
    function, = [f["Properties"] for name, f in synth_l4.resources("NetworkStack", "AWS::Lambda::Function").items()
                 if name.startswith("Gate")]
    assert (function["Handler"], function["Timeout"]) == ("eagleray.gate.handler.handler", 60)
    assert function["Runtime"].startswith("python3.")
    group, = [g for name, g in synth_l4.resources("NetworkStack", "AWS::Logs::LogGroup").items()
              if name.startswith("Gate")]
    assert group["DeletionPolicy"] == "Delete"
    assert group["Properties"]["RetentionInDays"]


def test_the_gate_may_change_nothing_but_reservations_of_its_own_stack(synth_l4, synth_reserved, synth_changed):
    for synth in (synth_l4, synth_reserved, synth_changed):
        for action, statements in actions(synth).items():
            verb = action.split(":")[1]
            if verb.startswith(("Describe", "Get")) or action.startswith("logs:"):
                continue
            assert action.startswith("ec2:"), action
            for statement in statements:
                own = named(statement.get("Condition", {})), named(statement["Resource"])
                assert "eagleray:gate" in own[0] or "CreateAction" in own[0] or "placement-group" in own[1], action
    assert "ec2:CreateCapacityReservation" not in actions(synth_changed), "an existing reservation needs none made"
    assert "ec2:ModifyCapacityReservation" not in actions(synth_l4)


# --- on-demand and spot --------------------------------------------------------------------------------


def test_on_demand_nodes_without_a_probe_are_only_checked(synth):
    asked = gate(synth("l4", "gpu.capacity={kind: on-demand, probe: false}"))
    assert "Probe" not in asked
    assert asked["Kind"] == "on-demand"


def test_spot_nodes_are_spot_in_the_nodegroup_and_count_towards_the_spot_quota(synth_spot):
    group, template = gpu(synth_spot)
    assert group["CapacityType"] == "SPOT"
    assert group["InstanceTypes"] == ["g6.12xlarge"]
    assert (group["ScalingConfig"]["MinSize"], group["ScalingConfig"]["MaxSize"]) == (0, 2)
    assert not template.keys() & {"InstanceMarketOptions", "CapacityReservationSpecification", "InstanceType"}
    assert "GroupName" in template["Placement"]
    asked = gate(synth_spot)
    assert (asked["Kind"], asked["QuotaCode"]) == ("spot", "L-3819A6DF")
    assert "Probe" not in asked


# --- a reservation that is there, and one that the deployment makes ------------------------------------


def test_an_existing_reservation_is_the_target_and_the_gate_is_told_its_group(synth):
    found = synth("l4", f"{RESERVATION}, placement_group: tight}}")
    group, template = gpu(found)
    assert group["CapacityType"] == "ON_DEMAND"
    target = template["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert template["Placement"] == {"GroupName": "tight"}
    asked = gate(found)
    assert (asked["Kind"], asked["ReservationId"], asked["PlacementGroup"]) == (
        "reservation", "cr-0123456789abcdef0", "tight")


def test_a_reservation_that_the_deployment_makes_reaches_the_nodes(synth_reserved):
    group, template = gpu(synth_reserved)
    assert group["CapacityType"] == "ON_DEMAND"
    target = template["CapacityReservationSpecification"]["CapacityReservationTarget"]["CapacityReservationId"]
    assert "Gate" in named(target) or "ReservationId" in named(target)
    assert "GroupName" in template["Placement"]
    assert template.keys().isdisjoint({"InstanceMarketOptions", "InstanceType"})
    asked = gate(synth_reserved)
    assert (asked["Kind"], asked["Hours"], asked["Round"]) == ("reserve", 24, 1)
    assert "placement-group" in named(asked["PlacementGroupArn"])


def test_a_reservations_end_is_no_part_of_the_template_so_that_a_second_synth_is_the_same(synth_reserved, synth):
    again = synth("reserved", "gpu.nodes=2")
    for stack in ("NetworkStack", "ClusterStack"):
        assert again.templates[stack].to_json() == synth_reserved.templates[stack].to_json()
    assert "EndDate" not in named(synth_reserved.templates["NetworkStack"].to_json())


def test_another_round_makes_another_reservation_and_rolls_the_nodes(synth_reserved, synth):
    again = synth("reserved", "gpu.capacity.round=2")
    assert gate(again)["Round"] == 2

    def version(found):
        templates = found.resources("ClusterStack", "AWS::EC2::LaunchTemplate")
        template, = [t["Properties"] for name, t in templates.items() if name.startswith("Gpu")]
        return template["VersionDescription"]

    assert version(again) != version(synth_reserved)


# --- a Capacity Block ----------------------------------------------------------------------------------


def test_a_capacity_block_is_in_the_launch_template_as_eks_wants_it(synth_block):
    group, template = gpu(synth_block)
    assert group["CapacityType"] == "CAPACITY_BLOCK"
    assert template["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert template["InstanceType"] == "p5.48xlarge"
    assert "InstanceTypes" not in group, "EKS takes the type from one place only"
    target = template["CapacityReservationSpecification"]["CapacityReservationTarget"]
    assert target == {"CapacityReservationId": "cr-0123456789abcdef0"}
    assert "Placement" not in template, "EC2 itself places a block's instances"


def test_its_nodes_come_when_it_starts_and_not_before(synth_block):
    group, _ = gpu(synth_block)
    assert (group["ScalingConfig"]["MinSize"], group["ScalingConfig"]["DesiredSize"]) == (0, 0)
    schedule = synth_block.only("ClusterStack", "AWS::Scheduler::Schedule")
    assert schedule["ScheduleExpression"] == "at(2026-12-10T11:30:00)"
    assert schedule["ScheduleExpressionTimezone"] == "Etc/UTC"
    assert "eks:updateNodegroupConfig" in named(schedule["Target"]["Arn"])
    assert "DesiredSize" in named(schedule["Target"]["Input"])
    asked = gate(synth_block)
    assert (asked["Kind"], asked["Starts"]) == ("capacity-block", "2026-12-10T11:30:00Z")


def test_a_block_that_has_started_gets_its_nodes_when_a_job_needs_them(synth):
    block = "gpu.capacity={kind: capacity-block, id: cr-0123456789abcdef0}"
    started = synth("l4", f"gpu.instance_type=p5.48xlarge,{block}")
    group, _ = gpu(started)
    assert group["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 2}
    assert not started.resources("ClusterStack", "AWS::Scheduler::Schedule")
    assert "Starts" not in gate(started)


def test_every_node_is_in_the_zone_that_the_gate_looked_at(synth_spot, synth_block, synth_reserved):
    for synth in (synth_spot, synth_block, synth_reserved):
        group, _ = gpu(synth)
        subnet, = group["Subnets"]
        export = subnet["Fn::ImportValue"]
        outputs = synth.templates["NetworkStack"].to_json()["Outputs"].values()
        name = next(o["Value"]["Ref"] for o in outputs if o.get("Export", {}).get("Name") == export)
        zone = synth.resources("NetworkStack", "AWS::EC2::Subnet")[name]["Properties"]["AvailabilityZone"]
        assert zone == gate(synth)["Zone"] == "us-east-2a"
