"""The bucket for checkpoints and results."""

from __future__ import annotations

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct


class TrainingBucket(Construct):
    """A private, encrypted bucket that outlives its stack: `cdk destroy` must not take the results along.

    Unversioned, since every checkpoint has a name of its own and a version kept behind it would double the
    bill. Uploads that a dying pod left half done are removed after a week.

    Attributes:
        bucket: the bucket.
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        self.bucket = s3.Bucket(
            self, "Bucket",
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            removal_policy=RemovalPolicy.RETAIN,
            lifecycle_rules=[s3.LifecycleRule(
                id="abandoned-uploads", abort_incomplete_multipart_upload_after=Duration.days(7))],
        )

    def uri(self, prefix: str = "") -> str:
        """`s3://bucket/prefix`; holds a CloudFormation reference until deployment."""
        return f"s3://{self.bucket.bucket_name}/{prefix}".rstrip("/")

    def grant_read_write(self, role: iam.Role, prefix: str = "") -> None:
        """Let `role` list the bucket, and read, write and delete objects below `prefix` ("" is all).

        Listing is not narrowed to the prefix: pyarrow asks for the bucket itself (HeadBucket) before it
        writes, which a condition on the prefix would refuse.
        """
        below = f"{prefix.strip('/')}/*" if prefix.strip("/") else "*"
        role.add_to_principal_policy(iam.PolicyStatement(
            actions=["s3:ListBucket"], resources=[self.bucket.bucket_arn]))
        role.add_to_principal_policy(iam.PolicyStatement(
            actions=["s3:GetObject", "s3:PutObject", "s3:DeleteObject",
                     "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"],
            resources=[self.bucket.arn_for_objects(below)]))
