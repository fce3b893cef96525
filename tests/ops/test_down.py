"""`eagleray down` with a cdk that deletes nothing, a cluster over HTTP, and AWS's answers by hand."""

import io
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from rich.console import Console

from ops.context import Context
from ops.down import command
from ops.down.command import Wanted, run
from ops.errors import CommandError, NothingToDoError, StoppedError
from tests.ops.fake_aws import FakeAws, RefusedError, no_stack
from tests.ops.standing import Standing

STACKS = [f"eagleray-{part}" for part in ("network", "cluster", "platform", "training")]
NOTHING = {
    "ec2.DescribeNatGateways": {"NatGateways": []}, "ec2.DescribeVolumes": {"Volumes": []},
    "ec2.DescribeNetworkInterfaces": {"NetworkInterfaces": []}, "logs.DescribeLogGroups": {"logGroups": []},
    "tagging.GetResources": {"ResourceTagMappingList": []},
}


class Project:
    """A folder with a cdk that notes its call and leaves the stacks that `left` names."""

    def __init__(self, folder, server, monkeypatch):
        self.folder, self.server = folder, server
        self.standing = dict.fromkeys(STACKS, "CREATE_COMPLETE")
        self.left, self.code, self.answers = {}, 0, {}
        (folder / "bin").mkdir()
        cdk = folder / "bin" / "cdk"
        cdk.write_text(f"#!{sys.executable}\nimport json, sys\nfrom pathlib import Path\n"
                       f"here = Path({str(folder)!r})\n"
                       "(here / 'called').write_text(json.dumps(sys.argv[1:]))\n"
                       "sys.exit(int((here / 'code').read_text()))\n")
        cdk.chmod(0o755)
        (folder / "cdk.json").write_text("{}")
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        self.output = io.StringIO()

    def down(self, go: Literal["ask", "yes"] = "yes", answer=True):
        (self.folder / "code").write_text(str(self.code))
        aws = FakeAws({"cloudformation.DescribeStacks": self._stacks, **NOTHING,
                       "cloudformation.DescribeStackEvents": self._events, **self.answers})
        screen = Console(file=self.output, width=250)
        code = run(Wanted(Context(), go), screen, lambda question: answer, lambda: aws)
        self.aws = aws
        return code

    @property
    def shown(self):
        return self.output.getvalue()

    @property
    def called(self):
        path = self.folder / "called"
        return json.loads(path.read_text()) if path.exists() else None

    def _stacks(self, region, params):
        name = params["StackName"]
        status = (self.left if self.called else self.standing).get(name)
        if status is None:
            return no_stack(region, params)
        found = {"StackName": name, "StackStatus": status, "CreationTime": datetime.now(UTC),
                 "StackStatusReason": "The following resource(s) failed to delete: [Subnet]."}
        if name.endswith("training"):
            found["Outputs"] = [{"OutputKey": "Bucket", "OutputValue": "results-1a2b"}]
        return {"Stacks": [found]}

    def _events(self, _region, params):
        return {"StackEvents": [
            {"StackId": "s", "StackName": params["StackName"], "EventId": "1", "LogicalResourceId": "Subnet",
             "PhysicalResourceId": "subnet-1", "ResourceStatus": "DELETE_FAILED", "Timestamp": datetime.now(UTC),
             "ResourceStatusReason": "The subnet 'subnet-1' has dependencies and cannot be deleted."}]}


@pytest.fixture
def project(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_EVERY_SECONDS", 0.01)
    Standing(tmp_path, server)
    return Project(tmp_path, server, monkeypatch)


def test_jobs_go_before_clusters_before_stacks_and_the_bucket_stays(project):
    project.server.looks_to_be_gone = 3
    assert project.down() == 0
    kinds = [name.partition("/")[0] for name in project.server.deleted]
    assert kinds == ["rayjobs", "rayclusters"]
    assert project.called == ["destroy", "--all", "--force", "-c", "config=l4"]
    assert "Stays: bucket results-1a2b" in project.shown
    assert project.shown.index("eagleray-training") < project.shown.index("eagleray-network")
    assert "Nothing that still bills was found." in project.shown


def test_until_it_is_confirmed_it_only_reads(project):
    assert project.down(go="ask", answer=False) == 0
    assert "Nothing was changed" in project.shown
    assert project.called is None
    assert project.server.deleted == []
    assert all(name.rpartition(".")[2].startswith(("Describe", "Get")) for name in project.aws.names())


def test_a_stack_that_cannot_go_says_why_and_the_rest_is_still_looked_for(project):
    project.code, project.left = 1, {"eagleray-network": "DELETE_FAILED"}
    assert project.down() == 1
    assert "eagleray-network is DELETE_FAILED" in project.shown
    assert "Subnet (subnet-1): The subnet 'subnet-1' has dependencies" in project.shown
    assert "aws cloudformation delete-stack --stack-name eagleray-network --region us-east-2" in project.shown
    assert "Nothing that still bills" in project.shown


def test_half_deleted_stacks_are_gone_on_with(project):
    project.standing = {"eagleray-network": "DELETE_FAILED"}
    assert project.down() == 0
    assert "has dependencies and cannot be deleted" in project.shown
    assert project.called is not None


def test_a_finalizer_that_nobody_takes_away_is_told_and_does_not_stop_the_stacks(project, monkeypatch):
    monkeypatch.setattr(command, "_GONE_SECONDS", 0.05)
    project.server.looks_to_be_gone = 10**6
    assert project.down() == 0
    assert "held by a finalizer" in project.shown
    assert "kubectl --namespace ray patch rayjob" in project.shown
    assert project.called is not None


def test_a_cluster_out_of_reach_does_not_stop_the_stacks(project):
    project.server.close()
    assert project.down() == 0
    assert "does not answer" in project.shown
    assert "Going on" in project.shown


LEFT = {
    "ec2.DescribeInstances": {"Reservations": [{"Instances": [
        {"InstanceId": "i-1", "InstanceType": "g6.12xlarge"}]}]},
    "ec2.DescribeCapacityReservations": {"CapacityReservations": [
        {"CapacityReservationId": f"cr-{name}", "Tags": [{
            "Key": "eagleray:gate", "Value": f"arn:aws:cloudformation:us-east-2:1:stack/{name}-network/9/Gate"}]}
        for name in ("eagleray", "other")]},
    "ec2.DescribeNatGateways": {"NatGateways": [{"NatGatewayId": "nat-1"}]},
    "ec2.DescribeAddresses": {"Addresses": [{"AllocationId": "eipalloc-1", "PublicIp": "203.0.113.9"}]},
    "ec2.DescribeVolumes": {"Volumes": [{"VolumeId": "vol-1", "Size": 200}]},
    "ec2.DescribeNetworkInterfaces": {"NetworkInterfaces": [{"NetworkInterfaceId": "eni-1"}]},
    # The second is what an agent of CloudWatch made anew while its group was deleted.
    "logs.DescribeLogGroups": lambda _region, params: {"logGroups": [
        {"logGroupName": name, "storedBytes": 5_000_000}
        for name in ("/aws/eks/eagleray/cluster", "/aws/containerinsights/eagleray/performance")
        if name.startswith(params["logGroupNamePrefix"])]},
    "tagging.GetResources": lambda _region, params: {"ResourceTagMappingList": [{"ResourceARN": (
        "arn:aws:s3:::results-1a2b" if params["ResourceTypeFilters"] == ["s3"] else
        "arn:aws:elasticloadbalancing:us-east-2:1:loadbalancer/net/a/1")}]},
}


def test_everything_that_still_bills_is_named_with_the_command_that_removes_it(project):
    project.answers = LEFT
    assert project.down() == 0
    for line in ("ec2 terminate-instances --instance-ids i-1", "--capacity-reservation-id cr-eagleray",
                 "ec2 delete-nat-gateway --nat-gateway-id nat-1", "ec2 release-address --allocation-id eipalloc-1",
                 "ec2 delete-volume --volume-id vol-1", "--network-interface-id eni-1",
                 "logs delete-log-group --log-group-name /aws/eks/eagleray/cluster",
                 "logs delete-log-group --log-group-name /aws/containerinsights/eagleray/performance",
                 "s3 rb --force s3://results-1a2b",
                 "elbv2 delete-load-balancer --load-balancer-arn arn:aws:elasticloadbalancing"):
        assert line in project.shown
    assert project.shown.count("--region us-east-2") >= 9
    assert "cr-other" not in project.shown


def test_where_nothing_stands_leftovers_are_told_without_a_question(project):
    project.standing, project.answers = {}, {"ec2.DescribeVolumes": LEFT["ec2.DescribeVolumes"]}
    assert project.down(go="ask", answer=True) == 0
    assert "No stack of eagleray stands" in project.shown
    assert "vol-1 (200 GiB)" in project.shown
    assert project.called is None


def test_what_may_not_be_looked_for_is_said(project):
    project.answers = {"ec2.DescribeVolumes": RefusedError("UnauthorizedOperation")}
    assert project.down() == 0
    assert "volume: could not be asked: not permitted" in project.shown


def test_no_credentials(project):
    project.answers = {"sts.GetCallerIdentity": RefusedError("ExpiredToken")}
    with pytest.raises(NothingToDoError, match="expired"):
        project.down()
    assert project.called is None


def test_no_cdk(project, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NothingToDoError, match="cdk is not on the PATH"):
        project.down()


def test_ctrl_c_says_that_the_same_command_goes_on(project, monkeypatch):
    def interrupted(context, signals):
        raise KeyboardInterrupt
    monkeypatch.setattr(command.cdk, "destroy", interrupted)
    with pytest.raises(StoppedError, match="the same command goes on"):
        project.down()


def test_aws_that_stops_answering_is_one_line(project):
    project.answers = {"cloudformation.DescribeStacks": RefusedError("AccessDenied")}
    with pytest.raises(CommandError, match="not permitted"):
        project.down()
    assert Path("cdk.json").exists()
