"""The network as it will stand in AWS: zones, routes, endpoint, logs, EFA rules, placement group."""

import json

import pytest

STACK = "NetworkStack"


def subnets(synth, kind):
    """Zone of each subnet of a kind (public, private), by logical id."""
    found = {}
    for name, subnet in synth.resources(STACK, "AWS::EC2::Subnet").items():
        tags = {t["Key"]: t["Value"] for t in subnet["Properties"]["Tags"]}
        if tags["aws-cdk:subnet-name"] == kind:
            found[name] = subnet["Properties"]["AvailabilityZone"]
    return found


@pytest.mark.parametrize("kind", ["public", "private"])
def test_there_is_one_subnet_of_each_kind_in_each_of_the_two_zones(synth_l4, kind):
    assert sorted(subnets(synth_l4, kind).values()) == ["us-east-2a", "us-east-2b"]


def test_zones_come_from_the_settings_and_need_no_credentials(synth):
    pinned = synth("l4", 'account="123456789012",region=eu-west-1,'
                         "network.zone=eu-west-1c,network.second_zone=eu-west-1a")
    assert sorted(subnets(pinned, "private").values()) == ["eu-west-1a", "eu-west-1c"]
    assert not json.loads((pinned.outdir / "manifest.json").read_text()).get("missing")


def test_nodes_that_move_to_another_zone_of_the_network_leave_its_subnets_as_they_are(synth):
    """CloudFormation would refuse to replace a subnet by one with the same addresses."""
    zones = "network.zone={},network.second_zone={},network.spare_zones=[{}]"
    before = synth("l4", zones.format("us-east-2a", "us-east-2b", "us-east-2c"))
    after = synth("l4", zones.format("us-east-2c", "us-east-2a", "us-east-2b"))
    for kind in ("AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::VPC"):
        assert after.resources(STACK, kind) == before.resources(STACK, kind)
    assert len(subnets(before, "private")) == 3
    nat = after.only(STACK, "AWS::EC2::NatGateway")
    assert subnets(after, "public")[nat["SubnetId"]["Ref"]] == "us-east-2c"

    def exported(synth):
        return set(synth.templates[STACK].to_json()["Outputs"])
    assert exported(after) == exported(before)

    def control_plane(synth):
        return synth.only("ClusterStack", "AWS::EKS::Cluster")["ResourcesVpcConfig"]["SubnetIds"]
    assert control_plane(after) == control_plane(before)


def test_the_account_is_left_open_unless_it_is_set(synth_l4, synth_changed):
    def environment(synth):
        return json.loads((synth.outdir / "manifest.json").read_text())["artifacts"][STACK]["environment"]
    assert environment(synth_l4) == "aws://unknown-account/us-east-2"
    assert environment(synth_changed) == "aws://123456789012/us-east-2"


def test_the_one_nat_gateway_stands_in_the_training_zone_and_serves_both_private_subnets(synth_l4):
    nat = synth_l4.only(STACK, "AWS::EC2::NatGateway")
    assert subnets(synth_l4, "public")[nat["SubnetId"]["Ref"]] == "us-east-2a"

    tables = {a["Properties"]["SubnetId"]["Ref"]: a["Properties"]["RouteTableId"]["Ref"]
              for a in synth_l4.resources(STACK, "AWS::EC2::SubnetRouteTableAssociation").values()}
    routes = {r["Properties"]["RouteTableId"]["Ref"]: r["Properties"]
              for r in synth_l4.resources(STACK, "AWS::EC2::Route").values()}
    for subnet in subnets(synth_l4, "private"):
        route = routes[tables[subnet]]
        assert route["DestinationCidrBlock"] == "0.0.0.0/0"
        assert "NatGatewayId" in route


def test_traffic_to_s3_takes_the_gateway_endpoint(synth_l4):
    endpoint = synth_l4.only(STACK, "AWS::EC2::VPCEndpoint")
    assert endpoint["VpcEndpointType"] == "Gateway"
    assert ".s3" in json.dumps(endpoint["ServiceName"])
    tables = {t["Ref"] for t in endpoint["RouteTableIds"]}
    private = {a["Properties"]["RouteTableId"]["Ref"]
               for a in synth_l4.resources(STACK, "AWS::EC2::SubnetRouteTableAssociation").values()
               if a["Properties"]["SubnetId"]["Ref"] in subnets(synth_l4, "private")}
    assert private <= tables


def test_flow_logs_are_kept_as_long_as_set_and_leave_with_the_stack(synth_l4, synth_changed):
    log = synth_l4.only(STACK, "AWS::EC2::FlowLog")
    assert (log["ResourceType"], log["TrafficType"]) == ("VPC", "ALL")
    assert log["LogDestinationType"] == "cloud-watch-logs"
    groups = synth_l4.resources(STACK, "AWS::Logs::LogGroup")
    group = groups[log["LogGroupName"]["Ref"]]
    assert (group["Properties"]["RetentionInDays"], group["DeletionPolicy"]) == (30, "Delete")
    # 45 days are not offered: the next longer period is.
    kept = synth_changed.only(STACK, "AWS::EC2::FlowLog")["LogGroupName"]["Ref"]
    assert synth_changed.resources(STACK, "AWS::Logs::LogGroup")[kept]["Properties"]["RetentionInDays"] == 60


def efa_rules(synth):
    """(direction, peer) of every rule of the EFA security group that is for all traffic."""
    group_id, group = next((name, g["Properties"]) for name, g in synth.resources(
        STACK, "AWS::EC2::SecurityGroup").items() if g["Properties"]["GroupDescription"].startswith("EFA"))
    itself = {"Fn::GetAtt": [group_id, "GroupId"]}
    rules = {("out", r.get("CidrIp")) for r in group["SecurityGroupEgress"] if r["IpProtocol"] == "-1"}
    for direction, kind, peer in [("in", "AWS::EC2::SecurityGroupIngress", "SourceSecurityGroupId"),
                                  ("out", "AWS::EC2::SecurityGroupEgress", "DestinationSecurityGroupId")]:
        for rule in synth.resources(STACK, kind).values():
            rule = rule["Properties"]
            if rule["GroupId"] == itself and rule["IpProtocol"] == "-1":
                rules.add((direction, "itself" if rule[peer] == itself else str(rule[peer])))
    return rules


def test_efa_traffic_may_pass_in_both_directions_within_the_group(synth_l4):
    # Egress to 0.0.0.0/0 alone does not cover EFA: the first collective fails with error 4126.
    assert efa_rules(synth_l4) == {("in", "itself"), ("out", "itself"), ("out", "0.0.0.0/0")}


def test_on_demand_nodes_get_a_cluster_placement_group(synth_l4):
    assert synth_l4.only(STACK, "AWS::EC2::PlacementGroup") == {"Strategy": "cluster"}


def test_a_reservation_gets_no_placement_group_of_ours(synth_changed):
    assert not synth_changed.resources(STACK, "AWS::EC2::PlacementGroup")
