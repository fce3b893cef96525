"""One training: a bucket, the standing Ray cluster, and the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aws_cdk import CfnOutput, Stack
from aws_cdk import aws_eks_v2 as eks
from constructs import Construct

from eagleray.identity import PodIdentityRole
from eagleray.storage import TrainingBucket
from k8s.bundle import CodeBundle, job_bundle
from k8s.cloudwatch_agent import SCRAPER
from k8s.deadlines import Deadlines
from k8s.ray_cluster import RayPods, WorkerGroup, ray_cluster_spec
from k8s.ray_job import JobSpec, job_spec
from k8s.training import training_objects
from k8s.worker_env import efa_environment
from settings.model import Settings
from stacks.manifest import apply_manifest
from training.config import digest

SERVICE_ACCOUNT = "training"
# Stands for the bucket's name, which only AWS knows, in the files of cdk.out/manifests.
BUCKET = "<checkpoint-bucket>"
# Folder of the bucket for runs, and all of it that the job may write to.
RUNS = "runs"
_CODE = Path(__file__).resolve().parent.parent / "training"


class TrainingStack(Stack):
    """Bucket, AWS permissions, RayCluster, code and RayJob.

    Code and job have construct ids that end in a hash of their content: a change makes CloudFormation create
    the new one and then delete the old one, and an unchanged deployment does nothing.

    Attributes:
        manifests: the Kubernetes objects, with a placeholder for the bucket.
    """

    def __init__(self, scope: Construct, construct_id: str, *, settings: Settings, cluster: eks.Cluster,
                 **kwargs: Any) -> None:
        super().__init__(scope, construct_id, **kwargs)
        namespace = settings.ray.namespace
        storage = TrainingBucket(self, "Storage")
        identity = PodIdentityRole(self, "Identity", cluster_name=settings.name, namespace=namespace,
                                   service_account=SERVICE_ACCOUNT)
        storage.grant_read_write(identity.role, RUNS)

        bundle = job_bundle(settings.name, _CODE, settings.train_job(storage=f"s3://{BUCKET}/{RUNS}"))
        pods, workers = _ray_pods(settings), _workers(settings)
        job = _job(settings, bundle, cluster_hash=digest(ray_cluster_spec(pods, workers)))
        objects = training_objects(namespace=namespace, cluster_name=settings.name, pods=pods, workers=workers,
                                   bundle=bundle, job=job, vpc_range=settings.network.cidr,
                                   scraper=SCRAPER if settings.observability.enabled else None)
        self.manifests = objects.in_order()

        bucket = {BUCKET: storage.bucket.bucket_name}
        account = apply_manifest(self, "ServiceAccount", cluster, objects.service_account)
        policies = [apply_manifest(self, f"NetworkPolicy-{policy['metadata']['name']}", cluster, policy)
                    for policy in objects.network_policies]
        ray_cluster = apply_manifest(self, "RayCluster", cluster, objects.ray_cluster)
        # Only pods that start after the association get credentials; and none is up before its policies.
        ray_cluster.node.add_dependency(account, identity, *policies)
        code = [apply_manifest(self, _hashed("Code", part["metadata"]["name"]), cluster, part, bucket)
                for part in objects.code]
        ray_job = apply_manifest(self, _hashed("RayJob", job.name), cluster, objects.job)
        ray_job.node.add_dependency(ray_cluster, *code)

        self._tell(settings, job.name, storage)

    def _tell(self, settings: Settings, job: str, storage: TrainingBucket) -> None:
        namespace = settings.ray.namespace
        CfnOutput(self, "Bucket", description="Checkpoints and results; stays when the stack is destroyed",
                  value=storage.bucket.bucket_name)
        CfnOutput(self, "Namespace", value=namespace)
        CfnOutput(self, "Job", value=job)
        CfnOutput(self, "JobEnds", description="Whatever the job does: nobody needs to watch it",
                  value=settings.run_limit.text)
        CfnOutput(self, "Status", description="Run this to see whether the job waits, runs or failed, and why",
                  value=f"kubectl --namespace {namespace} describe rayjob {job}")
        CfnOutput(self, "Watch", description="Run this to follow the job's log, once it is submitted",
                  value=f"kubectl --namespace {namespace} logs --follow job/{job}")


def _job(settings: Settings, bundle: CodeBundle, cluster_hash: str) -> JobSpec:
    limit = settings.run_limit
    deadlines = Deadlines(start=settings.ray.start_minutes * 60, run=limit.seconds, why=limit.why)
    return job_spec(prefix=settings.name, cluster=settings.name, cluster_hash=cluster_hash,
                    image=settings.ray.image, bundle=bundle, deadlines=deadlines)


def _ray_pods(settings: Settings) -> RayPods:
    return RayPods(image=settings.ray.image, ray_version=settings.ray.version, service_account=SERVICE_ACCOUNT,
                   region=settings.region)


def _workers(settings: Settings) -> WorkerGroup:
    gpu = settings.gpu
    return WorkerGroup(nodes=gpu.nodes, gpus=gpu.instance.gpus, efa=gpu.instance.efa, cpu=gpu.cpu,
                       memory_gib=gpu.memory_gib, environment=efa_environment(gpu.instance.family),
                       start_seconds=settings.ray.start_minutes * 60, idle_seconds=gpu.idle_minutes * 60,
                       hf_token_secret=settings.ray.hf_token_secret)


def _hashed(prefix: str, name: str) -> str:
    """`RayJob3f2a…` for an object named `eagleray-3f2a…`."""
    return prefix + name.rsplit("-", 1)[1]
