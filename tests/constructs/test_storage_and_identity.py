"""The bucket, and who may do what with it."""

import aws_cdk as cdk
import pytest
from aws_cdk.assertions import Template

from eagleray.identity import PodIdentityRole
from eagleray.storage import TrainingBucket


@pytest.fixture(scope="module")
def template() -> Template:
    stack = cdk.Stack(cdk.App(), "Stack")
    bucket = TrainingBucket(stack, "Results")
    pods = PodIdentityRole(stack, "Pods", cluster_name="eagleray", namespace="ray", service_account="training")
    bucket.grant_read_write(pods.role, prefix="runs/")
    cdk.CfnOutput(stack, "Uri", value=bucket.uri("runs"))
    return Template.from_stack(stack)


def only(template: Template, kind: str) -> dict:
    resource, = template.find_resources(kind).values()
    return dict(resource)


def test_results_survive_the_stack(template):
    bucket = only(template, "AWS::S3::Bucket")
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_bucket_is_private_and_encrypted(template):
    bucket = only(template, "AWS::S3::Bucket")["Properties"]
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    rule, = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert bucket["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]


def test_bucket_refuses_what_is_not_tls(template):
    statements = only(template, "AWS::S3::BucketPolicy")["Properties"]["PolicyDocument"]["Statement"]
    refusal = next(s for s in statements if s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}})
    assert (refusal["Effect"], refusal["Action"], refusal["Principal"]) == ("Deny", "s3:*", {"AWS": "*"})


def test_no_bytes_are_paid_for_that_nobody_sees(template):
    bucket = only(template, "AWS::S3::Bucket")["Properties"]
    assert "VersioningConfiguration" not in bucket
    rule, = bucket["LifecycleConfiguration"]["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}


def test_role_is_for_the_pods_of_one_service_account(template):
    role = only(template, "AWS::IAM::Role")["Properties"]
    trust, = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert set(trust["Action"]) == {"sts:AssumeRole", "sts:TagSession"}
    assert trust["Condition"]["StringEquals"] == {
        "aws:RequestTag/eks-cluster-name": "eagleray",
        "aws:RequestTag/kubernetes-namespace": "ray",
        "aws:RequestTag/kubernetes-service-account": "training",
    }
    association = only(template, "AWS::EKS::PodIdentityAssociation")["Properties"]
    role_id, = template.find_resources("AWS::IAM::Role")
    assert association == {"ClusterName": "eagleray", "Namespace": "ray", "ServiceAccount": "training",
                           "RoleArn": {"Fn::GetAtt": [role_id, "Arn"]}}


def test_role_may_touch_the_prefix_of_that_bucket_and_nothing_else(template):
    bucket_id, = template.find_resources("AWS::S3::Bucket")
    arn = {"Fn::GetAtt": [bucket_id, "Arn"]}
    granted = {}
    for statement in only(template, "AWS::IAM::Policy")["Properties"]["PolicyDocument"]["Statement"]:
        assert statement["Effect"] == "Allow"
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        granted |= dict.fromkeys(actions, statement["Resource"])
    assert granted.pop("s3:ListBucket") == arn
    assert set(granted) == {"s3:GetObject", "s3:PutObject", "s3:DeleteObject",
                            "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"}
    assert all(resource == {"Fn::Join": ["", [arn, "/runs/*"]]} for resource in granted.values())


def test_uri_names_bucket_and_prefix(template):
    bucket_id, = template.find_resources("AWS::S3::Bucket")
    uri = template.to_json()["Outputs"]["Uri"]["Value"]
    assert uri == {"Fn::Join": ["", ["s3://", {"Ref": bucket_id}, "/runs"]]}
