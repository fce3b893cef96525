"""The rules for templates at the synthesis of an app: one of strangers, and ours."""

import json

import aws_cdk as cdk
import pytest
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_s3 as s3

from eagleray.network import EfaSecurityGroup
from eagleray.policy import TrainingPolicy
from eagleray.policy.whole_app import StackTemplate
from stacks.aws_solutions import ACKNOWLEDGED, AwsSolutions


def foreign_app(outdir):
    """An app in two stacks that uses the EFA group in a template of its own."""
    # As the CDK's command line asks for it: construct paths in the templates.
    app = cdk.App(outdir=str(outdir), context={"aws:cdk:enable-path-metadata": True})
    TrainingPolicy.add_to(app)
    network, nodes = cdk.Stack(app, "Net"), cdk.Stack(app, "Nodes")
    vpc = ec2.Vpc(network, "Vpc", nat_gateways=0, max_azs=1)
    efa = EfaSecurityGroup(network, "Efa", vpc=vpc)
    interface = ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
        interface_type="efa", device_index=0, groups=[efa.security_group.security_group_id])
    ec2.CfnLaunchTemplate(nodes, "Template", launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
        network_interfaces=[interface]))
    return app, network, efa


def test_an_app_of_others_holds_the_rules_with_one_line_and_stops_at_what_lies_in_two_stacks(tmp_path):
    app, network, efa = foreign_app(tmp_path)
    efa.node.try_remove_child("ToItself")
    s3.CfnBucket(network, "Meant", bucket_encryption=s3.CfnBucket.BucketEncryptionProperty(
        server_side_encryption_configuration=[s3.CfnBucket.ServerSideEncryptionRuleProperty(
            server_side_encryption_by_default=s3.CfnBucket.ServerSideEncryptionByDefaultProperty(
                sse_algorithm="AES256"))]))
    cdk.Validations.of(network).acknowledge(
        cdk.Acknowledgment(id="CloudFormation-Validate::bucket-public", reason="a web site"))
    with pytest.raises(RuntimeError, match=r"efa-traffic  Net/Efa/SecurityGroup  SecurityGroupEgress: on EFA "
                                           r"interfaces, but .* out to itself; use EfaSecurityGroup"):
        app.synth()
    [report] = json.loads((tmp_path / "validation-report.json").read_text())["pluginReports"]
    assert [v["ruleName"] for v in report["violations"] if v["severity"] == "error"] == ["efa-traffic"]
    assert report["violations"][0]["violatingConstructs"][0]["constructPath"].startswith("Net/Efa/SecurityGroup")


def test_the_policy_comes_before_the_stacks(tmp_path):
    app = cdk.App(outdir=str(tmp_path))
    cdk.Stack(app, "Early")
    with pytest.raises(ValueError, match="before the app's first stack"):
        TrainingPolicy.add_to(app)


def test_cdk_nag_stops_at_what_nobody_gave_a_reason_for(tmp_path):
    app = cdk.App(outdir=str(tmp_path), builtin_cloud_formation_validation=False)
    cdk.Validations.of(app).add_plugins(AwsSolutions(app))
    s3.Bucket(cdk.Stack(app, "TrainingStack"), "Other")
    with pytest.raises(RuntimeError, match="AwsSolutions-S1  TrainingStack/Other/Resource"):
        app.synth()


@pytest.fixture(scope="module")
def opened(synth):
    """Our app with all that is acknowledged, an API that is open to the world too, and who judged it."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stacks.template_rules.AwsSolutions", lambda app: made.append(AwsSolutions(app)) or made[-1])
        # Built for this module alone.
        app = synth("l4", "cluster.api_cidrs=[open-to-the-world],observability.enabled=true")
    return app, made[0]


def test_the_words_for_an_open_api_let_a_template_pass_that_a_rule_finds(opened):
    app, _ = opened
    network = app.only("ClusterStack", "AWS::EKS::Cluster")["ResourcesVpcConfig"]
    assert (network["EndpointPrivateAccess"], network["PublicAccessCidrs"]) == (True, ["0.0.0.0/0"])
    stack = StackTemplate("ClusterStack", "", {"Resources": {
        name: {"Type": "AWS::EKS::Cluster", **one}
        for name, one in app.resources("ClusterStack", "AWS::EKS::Cluster").items()}})
    assert [found.rule for found in TrainingPolicy.engine().findings([stack])[0]] == ["api-endpoint"]


def test_every_reason_has_a_finding_that_it_is_for(opened):
    _, judge = opened
    assert [one for one in ACKNOWLEDGED if one not in judge.used] == []
    assert all(len(one.reason) > 20 for one in ACKNOWLEDGED)
