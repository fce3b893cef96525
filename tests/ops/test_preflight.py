"""`eagleray preflight` against hand-written answers of AWS (tests/ops/fake_aws.py): no account, no network."""

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from botocore.exceptions import EndpointConnectionError
from fake_aws import RefusedError, reservation, stack
from preflight_run import READS, Preflight, answered

from eagleray import catalog
from ops.errors import CommandError, NothingToDoError

pytestmark = pytest.mark.usefixtures("public_registry")


def test_an_account_in_order_is_ready_and_nothing_was_changed():
    preflight = Preflight()
    assert preflight.run() == 0
    assert "2 x g6.12xlarge (on-demand), 1 x m7i.xlarge in account 123456789012" in preflight.shown
    assert "Ready: us-east-2a (second zone us-east-2b)." in preflight.shown
    assert preflight.aws.names()
    assert all(READS.fullmatch(name) for name in preflight.aws.names())


def test_machines_get_the_same():
    told = json.loads(answered(0, output="json"))
    assert (told["status"], told["zone"]) == ("ok", "us-east-2a")
    checks = {finding["check"] for finding in told["regions"][0]["findings"]}
    assert checks >= {"identity", "bootstrap", "quota", "efa", "offering", "network", "roles", "eks", "image",
                      "stacks"}


OFFERED_ELSEWHERE = {"InstanceTypeOfferings": [
    {"InstanceType": "g6.12xlarge", "LocationType": "availability-zone", "Location": "us-east-2c"}]}


def only_gpus_elsewhere(region, params):
    if params["Filters"][0]["Values"][0] == "g6.12xlarge":
        return OFFERED_ELSEWHERE
    return {"InstanceTypeOfferings": [{"InstanceType": "m7i.xlarge", "LocationType": "availability-zone",
                                       "Location": f"{region}{letter}"} for letter in "abc"]}


def old_bootstrap(*_):
    return {"Parameter": {"Value": "5"}}


def two_vcpu_left(*_):
    return {"Quota": {"Value": 98.0}}


def running(*_):
    return {"Reservations": [{"Instances": [{"InstanceId": "i-1", "InstanceType": "g5.xlarge", "CpuOptions": {
        "CoreCount": 2, "ThreadsPerCore": 2}}]}]}


def without_efa(*_):
    return {"InstanceTypes": [{"InstanceType": "g6.12xlarge", "VCpuInfo": {"DefaultVCpus": 48},
                               "NetworkInfo": {"EfaSupported": False}}]}


@pytest.mark.parametrize(("answers", "what", "fix"), [
    ({"ssm.GetParameter": RefusedError("ParameterNotFound")},
     "the CDK is not set up in us-east-2", "cdk bootstrap aws://123456789012/us-east-2"),
    ({"ssm.GetParameter": old_bootstrap}, "version 5 is older than the 6 needed", "cdk bootstrap aws://"),
    ({"servicequotas.GetServiceQuota": two_vcpu_left, "ec2.DescribeInstances": running},
     "(98) 4 are in use", "request-service-quota-increase --region us-east-2 --service-code ec2 "
                          "--quota-code L-DB2E81BA --desired-value 100"),
    ({"ec2.DescribeInstanceTypeOfferings": only_gpus_elsewhere},
     "us-east-2a has no g6.12xlarge", "deploy to us-east-2c"),
    ({"ec2.DescribeInstanceTypes": RefusedError("InvalidInstanceType")},
     "us-east-2 has no g6.12xlarge", "choose another region or instance type"),
    ({"ec2.DescribeInstanceTypes": without_efa}, "g6.12xlarge has no EFA in us-east-2", "use one of"),
    ({"ec2.DescribeAddresses": {"Addresses": [{"AllocationId": f"e-{n}"} for n in range(192)]}},
     "EC2-VPC Elastic IPs: 192 of 192 in use, 1 needed", "--quota-code L-0263D0A3 --desired-value 193"),
    ({"eks.DescribeClusterVersions": {"clusterVersions": []}},
     "does not make clusters of Kubernetes 1.36", "aws eks describe-cluster-versions"),
    ({"api.ecr.BatchGetImage": {"images": [], "failures": [{"failureReason": "Requested image not found"}]}},
     "Requested image not found", "correct the image's tag"),
    ({"cloudformation.DescribeStacks": stack("UPDATE_IN_PROGRESS", "eagleray-cluster")},
     "eagleray-cluster is UPDATE_IN_PROGRESS", "wait for its end"),
    ({"cloudformation.DescribeStacks": stack("ROLLBACK_FAILED", "eagleray-network")},
     "eagleray-network is ROLLBACK_FAILED", "aws cloudformation delete-stack --region us-east-2"),
])
def test_what_would_stop_a_deployment_is_told_with_what_mends_it(answers, what, fix):
    shown = answered(1, answers)
    line = next(line for line in shown.splitlines() if what in line)
    after = shown[shown.index(line) + len(line):]
    assert fix in (line + after.splitlines()[1])
    assert "Not ready: us-east-2a." in shown


@pytest.mark.parametrize("operation", [
    "ssm.GetParameter", "ec2.DescribeInstanceTypes", "ec2.DescribeInstanceTypeOfferings", "ec2.DescribeVpcs",
    "servicequotas.GetServiceQuota", "eks.DescribeClusterVersions", "iam.GetRole", "api.ecr.BatchGetImage",
    "cloudformation.DescribeStacks", "ec2.DescribeAvailabilityZones", "ec2.DescribeCapacityReservations"])
@pytest.mark.parametrize(("refusal", "words"), [
    (RefusedError("AccessDeniedException"), "not permitted|no permission"),
    (RefusedError("ThrottlingException"), "throttl|ThrottlingException"),
    (EndpointConnectionError(endpoint_url="https://ec2.us-east-2.amazonaws.com"), "no answer|could not be asked"),
])
def test_one_call_that_is_not_answered_is_unknown_and_the_others_go_on(operation, refusal, words):
    preflight = Preflight({operation: refusal}, width=400)
    assert preflight.run() == 3
    assert re.search(words, preflight.shown, re.IGNORECASE), preflight.shown
    assert "Not known whether ready: us-east-2a." in preflight.shown
    assert len(set(preflight.aws.names())) >= 12


def test_missing_service_linked_roles_are_a_note_for_aws_makes_them():
    shown = answered(0, {"iam.GetRole": RefusedError("NoSuchEntity")})
    assert "aws iam create-service-linked-role --aws-service-name eks-nodegroup.amazonaws.com" in shown


@pytest.mark.parametrize(("refusal", "message"), [
    (RefusedError("ExpiredToken"), "the AWS credentials have expired; sign in"),
    (RefusedError("InvalidClientTokenId"), "AWS does not accept the credentials"),
    (EndpointConnectionError(endpoint_url="https://sts.us-east-2.amazonaws.com"), "no answer from"),
])
def test_without_usable_credentials_nothing_is_asked(refusal, message):
    with pytest.raises(NothingToDoError, match=message) as error:
        Preflight({"sts.GetCallerIdentity": refusal}).run()
    assert error.value.exit_code == 2


def test_credentials_of_another_account_than_the_settings_are_refused():
    with pytest.raises(CommandError, match="the settings say 111111111111, the credentials are of 123456789012"):
        Preflight(overrides="account='111111111111'").run()


@pytest.mark.parametrize(("wanted", "message"), [
    ({"regions": ("us-esat-2",)}, r"us-esat-2 is not a region with EKS; did you mean us-\w+-2\?"),
    ({"zones": ("us-east-2x",)}, r"--azs us-east-2x: no such zone in us-east-2 .*us-east-2a \(use2-az1\)"),
    ({"zones": ("use2-az9",)}, "--azs use2-az9: no such zone id in us-east-2"),
    ({"everywhere": True, "zones": ("us-east-2a",)}, "--all-regions and --regions or --azs exclude each other"),
    ({"probe": "yes", "overrides": "gpu.capacity.kind=spot"}, "gpu.capacity.kind is spot; leave --probe out"),
])
def test_places_that_are_not_there_are_one_clear_error(wanted, message):
    with pytest.raises(NothingToDoError, match=message):
        Preflight(**wanted).run()


def test_a_zone_id_means_the_zone_that_it_is_in_this_account():
    assert "Ready: us-east-2b (second zone us-east-2a)." in answered(0, zones=("use2-az2",))


def test_regions_and_zones_come_ready_ones_first():
    def quota(region, _):
        return {"Quota": {"Value": 0.0 if region == "us-east-2" else 400.0}}

    told = json.loads(answered(0, {"servicequotas.GetServiceQuota": quota},
                               regions=("us-east-2", "us-west-2"), output="json"))
    assert [r["region"] for r in told["regions"]] == ["us-west-2", "us-east-2"]
    assert told["zone"] == "us-west-2a"
    assert [c["status"] for c in told["candidates"]] == ["ok"] * 3 + ["failed"] * 3


def test_every_region_is_a_line_or_two_and_what_holds_everywhere_is_told_once(monkeypatch):
    monkeypatch.setattr(catalog, "regions", lambda: ["eu-west-1", "us-east-2", "us-west-2", "sa-east-1"])

    def bootstrapped(region, _):
        return {"Parameter": {"Value": "30"}} if region == "eu-west-1" else RefusedError("ParameterNotFound")

    shown = answered(0, {"ssm.GetParameter": bootstrapped}, everywhere=True)
    lines = [line for line in shown.splitlines() if "us-west-2" in line]
    assert len(lines) == 2
    assert "bootstrap: the CDK is not set up in us-west-2" in lines[0]
    assert "cdk bootstrap aws://123456789012/us-west-2" in lines[1]
    assert shown.count("arn:aws:iam::123456789012:user/ann") == 1
    assert "Ready: eu-west-1a (second zone eu-west-1b).\nThen: eu-west-1b, eu-west-1c." in shown


def test_a_region_that_is_switched_off_is_told_with_the_command():
    off = {"Regions": [{"RegionName": "us-west-2", "OptInStatus": "not-opted-in"}]}
    shown = answered(1, {"ec2.DescribeRegions": off}, regions=("us-west-2",))
    assert "aws account enable-region --region-name us-west-2" in shown


def test_a_zone_that_is_down_or_where_eks_has_no_control_plane_is_not_taken():
    zones = {"AvailabilityZones": [
        {"ZoneName": "us-east-1a", "ZoneId": "use1-az3", "State": "available"},
        {"ZoneName": "us-east-1b", "ZoneId": "use1-az1", "State": "impaired"},
        {"ZoneName": "us-east-1c", "ZoneId": "use1-az2", "State": "available"},
        {"ZoneName": "us-east-1d", "ZoneId": "use1-az4", "State": "available"}]}
    told = json.loads(answered(0, {"ec2.DescribeAvailabilityZones": zones, "ec2.DescribeInstanceTypeOfferings":
        lambda region, params: {"InstanceTypeOfferings": [{"InstanceType": params["Filters"][0]["Values"][0],
                                "LocationType": "availability-zone", "Location": f"{region}{x}"} for x in "abcd"]}},
                               regions=("us-east-1",), output="json"))
    assert {c["zone"]: c["status"] for c in told["candidates"]} == {
        "us-east-1a": "failed", "us-east-1b": "failed", "us-east-1c": "ok", "us-east-1d": "ok"}
    assert told["candidates"][0]["second_zone"] == "us-east-1d"


NAMED = "gpu.capacity={kind: reservation, id: cr-0123456789abcdef0}"
BLOCK = "gpu.instance_type=p5.48xlarge,gpu.capacity={kind: capacity-block, id: cr-0123456789abcdef0}"


def is_there(**changes):
    found = reservation(AvailabilityZone="us-east-2a", **changes)
    return {"ec2.DescribeCapacityReservations": {"CapacityReservations": [found]}}


@pytest.mark.parametrize(("found", "overrides", "what"), [
    (is_there(), NAMED, None),
    (is_there(InstanceType="g6.24xlarge"), NAMED, "is for g6.24xlarge, not g6.12xlarge"),
    (is_there(AvailableInstanceCount=1), NAMED, "has 1 of 2 instances left, 2 are needed"),
    (is_there(State="expired"), NAMED, "is expired, not active"),
    (is_there(EndDate=datetime.now(UTC) + timedelta(minutes=20)), NAMED, "too soon to be of use"),
    (is_there(PlacementGroupArn="arn:aws:ec2:us-east-2:123456789012:placement-group/tight"), NAMED,
     "was made in placement group tight, not outside of any"),
    (is_there(), f"{NAMED[:-1]}, placement_group: tight}}", "was made in no placement group, not in tight"),
    (is_there(ReservationType="capacity-block"), NAMED, "is a Capacity Block"),
    ({"ec2.DescribeCapacityReservations": RefusedError("InvalidCapacityReservationId.NotFound")}, NAMED,
     "cr-0123456789abcdef0 is not there for this account in us-east-2"),
    (is_there(), BLOCK, "is an On-Demand Capacity Reservation"),
])
def test_a_reservation_that_does_not_hold_the_nodes_says_why(found, overrides, what):
    def types(_region, params):
        name = params["InstanceTypes"][0]
        gpus, efa, vcpu = {"g6.12xlarge": (4, 1, 48), "p5.48xlarge": (8, 32, 192)}[name]
        return {"InstanceTypes": [{"InstanceType": name, "VCpuInfo": {"DefaultVCpus": vcpu}, "GpuInfo": {
            "Gpus": [{"Count": gpus}]}, "NetworkInfo": {"EfaSupported": True,
                                                        "EfaInfo": {"MaximumEfaInterfaces": efa}}}]}

    shown = answered(0 if what is None else 1, {**found, "ec2.DescribeInstanceTypes": types}, overrides=overrides)
    assert what is None or what in shown


def test_a_free_reservation_of_the_account_is_told_with_the_setting_that_uses_it():
    shown = answered(0, is_there())
    assert "-c set=gpu.capacity.kind=reservation,gpu.capacity.id=cr-0123456789abcdef0" in shown


def test_it_reads_well_at_80_columns_and_without_colour():
    preflight = Preflight({"ssm.GetParameter": RefusedError("ParameterNotFound")}, width=80)
    preflight.run()
    # commands and names stay whole, so that they can be copied
    long = [line for line in preflight.shown.splitlines() if len(line) > 80 and "→" not in line
            and len(line[22:].split()) > 1]
    assert not long
    assert "\x1b" not in preflight.shown
