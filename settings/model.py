"""The settings, their defaults and the rules between them."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal

from pydantic import Field, field_validator, model_validator

from eagleray import catalog
from settings.api_ranges import OPEN_TO_THE_WORLD, ipv4_network, keep_out_the_world
from settings.cost import rented
from settings.gpu import GpuSettings
from settings.images import DigestSettings, ImageName, RayVersion
from settings.observability import ObservabilitySettings
from settings.run_limit import RunLimit, run_limit
from settings.strict import Strict
from training import topology
from training.config import Placement, TrainConfig, TrainJob
from training.shape import known_shape


class NetworkSettings(Strict):
    """The VPC."""

    zone: str = "us-east-2a"
    """Availability Zone of all nodes and of the NAT gateway."""
    second_zone: str = "us-east-2b"
    """A second zone with subnets: the EKS control plane needs two."""
    spare_zones: list[str] = []
    """Zones that get subnets too, so that the nodes can move there later; they cost nothing."""
    cidr: str = "10.0.0.0/16"
    """Address range of the VPC, /16 to /22."""
    flow_log_days: int = Field(default=30, ge=1)
    """Days that VPC flow logs are kept; rounded up to a period that CloudWatch offers."""

    @field_validator("cidr")
    @classmethod
    def _private_range(cls, value: str) -> str:
        network = ipv4_network(value, "10.0.0.0/16")
        if not 16 <= network.prefixlen <= 22:
            raise ValueError(f"{value} is a /{network.prefixlen}; use /16 to /22, for example 10.0.0.0/16")
        if not network.is_private:
            raise ValueError(f"{value} is not a private range; use for example 10.0.0.0/16")
        return value


class ClusterSettings(Strict):
    """The EKS control plane."""

    version: str = "1.36"
    """Kubernetes version."""
    kubectl_layer: Literal["v36"] = "v36"
    """kubectl that applies the manifests; must be the layer of the cluster's version."""
    api_cidrs: list[str] = []
    """Address ranges that may reach the cluster's API from the internet, together no more than a /8; none: only
    from inside the VPC. To let in everybody it takes the words [open-to-the-world]."""
    admin_arns: list[str] = []
    """IAM roles or users that become cluster-admin, for `kubectl`: name your own."""
    log_days: int = Field(default=30, ge=1)
    """Days that control-plane logs are kept; rounded up likewise."""

    @field_validator("kubectl_layer", mode="before")
    @classmethod
    def _carried(cls, value: object) -> object:
        if value != "v36":
            raise ValueError("the app carries the kubectl layer v36 only, for cluster version \"1.36\"; "
                             "leave kubectl_layer out")
        return value

    @field_validator("version", mode="before")
    @classmethod
    def _creatable(cls, value: object) -> object:
        versions = catalog.eks_versions()
        good = [v for v, facts in versions.items() if facts["support"] == "standard"]
        value = str(value)  # 1.36 without quotes is a number; 1.30 would lose its zero and be unknown
        if value not in versions:
            quoted = "; YAML reads 1.30 as 1.3, so put it in quotes" if value == "1.3" else ""
            raise ValueError(f"{value} is not a version EKS is known to offer; use {' or '.join(good)}{quoted}")
        facts = versions[value]
        if facts["support"] == "ended":
            raise ValueError(f"EKS no longer creates {value} (ended {facts['until']}); use {' or '.join(good)}")
        return value

    @field_validator("api_cidrs")
    @classmethod
    def _ranges(cls, value: list[str]) -> list[str]:
        if OPEN_TO_THE_WORLD in value and len(value) > 1:
            raise ValueError(f"{OPEN_TO_THE_WORLD} lets in everybody, so a range beside it means nothing; name the "
                             "ranges alone, for example [203.0.113.7/32]")
        if value != [OPEN_TO_THE_WORLD]:
            keep_out_the_world(value)
        return value

    @field_validator("admin_arns")
    @classmethod
    def _principals(cls, value: list[str]) -> list[str]:
        for arn in value:
            if ":assumed-role/" in arn:
                raise ValueError(f"{arn} is a session; name its role, as in arn:aws:iam::123456789012:role/Admin")
            if not re.fullmatch(r"arn:aws[\w-]*:iam::\d{12}:(role|user)/[\w+=,.@/-]+", arn):
                raise ValueError(f"{arn} is not the ARN of a role or user; "
                                 "it looks like arn:aws:iam::123456789012:role/Admin")
        return value

    @property
    def api_is_open(self) -> bool:
        """Whether everybody may reach the cluster's API."""
        return self.api_cidrs == [OPEN_TO_THE_WORLD]

    @model_validator(mode="after")
    def _layer_matches(self) -> ClusterSettings:
        if self.kubectl_layer != "v" + self.version.split(".")[1]:
            raise ValueError(f"version {self.version} does not match the kubectl layer {self.kubectl_layer} "
                             "that the app carries; use version: \"1.36\"")
        return self


class SystemSettings(Strict):
    """The nodegroup for the operator and the Ray head."""

    instance_type: str = "m7i.xlarge"
    """A type without GPU."""
    nodes: int = Field(default=1, ge=1, le=10)
    """Nodes."""
    volume_gib: int = Field(default=100, ge=50, le=16384)
    """Root volume in GiB; the training image alone unpacks to more than 20."""

    @field_validator("instance_type")
    @classmethod
    def _without_gpu(cls, value: str) -> str:
        if catalog.instance_type(value).gpus:
            raise ValueError(f"{value} has GPUs; use a type without, for example m7i.xlarge")
        return value


class RaySettings(Strict):
    """Ray and the job."""

    image: ImageName = "public.ecr.aws/deep-learning-containers/ray:train-ml-cuda-v1.1"
    """Image of head, workers and submitter: name:tag, or name@sha256:… for these very bytes."""
    version: RayVersion = "2.58.0"
    """Ray version inside the image."""
    namespace: str = Field(default="ray", pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$")
    """Kubernetes namespace of the Ray cluster and its jobs; destroy TrainingStack before you change it."""
    hf_token_secret: str | None = None
    """Name of a Secret in that namespace, which you make, whose key `token` is a Hugging Face token for gated
    models and datasets; none: only what the Hub shows to everybody."""
    start_minutes: int = Field(default=40, ge=5, le=600)
    """Minutes that a job waits for nodes, image and workers; Ray Train tries up to four times before it fails."""
    run_hours: int = Field(default=24, ge=1, le=720)
    """Hours after which a job is stopped, whatever it does."""
    max_dollars: float | None = Field(default=None, gt=0, le=1e9)
    """US dollars that a job may cost before it is stopped: list prices, of all that bills by the hour; none: only
    `run_hours` stops it."""

    @model_validator(mode="after")
    def _starts_before_it_ends(self) -> RaySettings:
        if self.start_minutes >= self.run_hours * 60:
            raise ValueError(f"start_minutes {self.start_minutes} is not shorter than run_hours {self.run_hours}; "
                             f"use run_hours {self.start_minutes // 60 + 1} or more")
        return self

    @field_validator("hf_token_secret")
    @classmethod
    def _a_name_and_no_token(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", value):
            raise ValueError("this is not the name of a Secret, such as hf-token; a token itself never stands in "
                             "the settings: put it into a Secret (docs/security.md) and name that here")
        return value

    @field_validator("namespace")
    @classmethod
    def _not_a_system_namespace(cls, value: str) -> str:
        if value.startswith("kube-") or value == "default":
            raise ValueError(f"{value} belongs to Kubernetes; use for example ray")
        return value


class Settings(Strict):
    """All choices of the user."""

    name: str = Field(default="eagleray", pattern=r"^[a-z][a-z0-9-]{0,21}[a-z0-9]$")
    """Prefix of the stacks and name of the cluster."""
    account: str | None = Field(default=None, pattern=r"^\d{12}$")
    """AWS account id to pin the deployment to; none: the account of the current credentials."""
    region: str = "us-east-2"
    """AWS region."""
    network: NetworkSettings = NetworkSettings()
    """The VPC."""
    cluster: ClusterSettings = ClusterSettings()
    """The EKS control plane."""
    system: SystemSettings = SystemSettings()
    """The system nodegroup."""
    gpu: GpuSettings = GpuSettings()
    """The GPU nodegroup."""
    ray: RaySettings = RaySettings()
    """Ray and the job."""
    digests: DigestSettings = DigestSettings()
    """Digests of the platform's images."""
    observability: ObservabilitySettings = ObservabilitySettings()
    """What CloudWatch is told."""
    training: TrainConfig = TrainConfig()
    """The training."""

    @field_validator("region")
    @classmethod
    def _has_eks(cls, value: str) -> str:
        if value not in catalog.regions():
            near = get_close_matches(value, catalog.regions(), n=1) or ["us-east-2"]
            raise ValueError(f"{value} is not a region with EKS; did you mean {near[0]}?")
        return value

    @model_validator(mode="after")
    def _zones_of_the_region(self) -> Settings:
        network = self.network
        places = [("zone", network.zone), ("second_zone", network.second_zone),
                  *(("spare_zones", zone) for zone in network.spare_zones)]
        for field, zone in places:
            if re.fullmatch(r"[a-z]+\d-az\d+", zone):
                raise ValueError(f"network.{field} {zone} is the id of a zone, whose name differs from account to "
                                 f"account; eagleray preflight --azs {zone} tells the name in yours")
            if not re.fullmatch(re.escape(self.region) + "[a-z]", zone):
                raise ValueError(f"network.{field} {zone} is not a zone of region {self.region}; "
                                 f"zones there are named {self.region}a, {self.region}b …")
        if self.network.zone == self.network.second_zone:
            other = self.region + ("b" if self.network.zone.endswith("a") else "a")
            raise ValueError(f"network.second_zone {self.network.zone} is the same as network.zone; use {other}")
        return self

    @model_validator(mode="after")
    def _efa_can_be_proven(self) -> Settings:
        gpu = self.gpu
        if self.training.transport.require == "efa" and 1 in (gpu.nodes, gpu.min_nodes):
            setting = "gpu.nodes" if gpu.nodes == 1 else "gpu.min_nodes"
            raise ValueError(f"training.transport.require efa: with {setting} 1 nothing crosses the network, so "
                             f"EFA cannot be proven; use auto, or {setting} 2 or more")
        return self

    @model_validator(mode="after")
    def _fewer_nodes_can_take_the_same_step(self) -> Settings:
        if self.gpu.min_nodes is None:
            return self
        try:
            shape = known_shape(self.training.model)
        except (ValueError, OSError):
            shape = None
        topology.resolve(self.train_job("s3://bucket/runs"), shape)
        return self

    @model_validator(mode="after")
    def _ceiling_can_be_held(self) -> Settings:
        run_limit(self)
        return self

    @property
    def run_limit(self) -> RunLimit:
        """When a job is ended, whatever it does."""
        return run_limit(self)

    def placement(self, storage: str) -> Placement:
        """Where the job runs: one rank a GPU. `storage` is the URI for checkpoints."""
        node = self.gpu.instance
        return Placement(
            nodes=self.gpu.nodes, min_nodes=self.gpu.min_nodes, workers_per_node=node.gpus, storage=storage,
            gpu=node.gpu, gpu_memory_mib=node.gpu_mem_mib, link_mbps=node.net_mbps,
            efa_per_node=node.efa, rented=rented(self),
        )

    def train_job(self, storage: str) -> TrainJob:
        """The contents of train.json. The same training gets the same name, and so finds its checkpoints."""
        name = f"{self.name}-{self.training.digest()}"
        return TrainJob(name=name, training=self.training, placement=self.placement(storage))
