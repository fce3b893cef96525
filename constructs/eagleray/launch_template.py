"""The parts of a managed nodegroup's launch template.

EKS refuses a template with SubnetId or IamInstanceProfile, and EC2 one that has SecurityGroupIds beside
NetworkInterfaces; so neither is here, and the subnet belongs to the nodegroup. So does the instance type, but
for a Capacity Block: that alone needs type and InstanceMarketOptions in the template.
Source: EKS user guide, launch-templates and capacity-blocks-mng.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Fn
from aws_cdk import aws_ec2 as ec2

from eagleray.catalog import InstanceType

# MiB/s, and the IOPS that gp3 asks for it (one for a quarter MiB/s).
_FAST_THROUGHPUT, _FAST_IOPS = 1000, 4000

# EKS appends its own NodeConfig, which names the cluster, and nodeadm merges the two.
_FAST_IMAGE_PULL = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="BOUNDARY"

--BOUNDARY
Content-Type: application/node.eks.aws

---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  featureGates:
    FastImagePull: true

--BOUNDARY--
"""


def fast_image_pull() -> str:
    """User data with which AL2023 downloads and unpacks the layers of an image in parallel.

    AWS calls the gate experimental and recommends it for large images on instances of 2xlarge and above
    whose root volume does 600 MiB/s or more (`fast_root_volume`); below that it makes pulls slower.
    Source: github.com/awslabs/amazon-eks-ami, nodeadm/doc/examples.md, "Enabling fast image pull".
    """
    return Fn.base64(_FAST_IMAGE_PULL)


def root_volume(gib: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """AL2023's root volume: encrypted gp3 of `gib` GiB at gp3's included 125 MiB/s."""
    return _gp3(gib)


def fast_root_volume(gib: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """A root volume for nodes that cost dollars an hour while they unpack a training image: 1000 MiB/s."""
    return _gp3(gib, throughput=_FAST_THROUGHPUT, iops=_FAST_IOPS)


def _gp3(gib: int, throughput: int | None = None, iops: int | None = None
         ) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
        device_name="/dev/xvda",
        ebs=ec2.CfnLaunchTemplate.EbsProperty(
            volume_size=gib, volume_type="gp3", encrypted=True, delete_on_termination=True,
            throughput=throughput, iops=iops))


def node_only_metadata() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 for the node itself, out of reach for pods (hop limit 1).

    What needs IMDS runs on the host's network: nodeadm, aws-node and the Pod Identity agent. Pods get
    credentials and the region from Pod Identity, and aws-ofi-nccl reads the machine's type from DMI.
    """
    return ec2.CfnLaunchTemplate.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1)


def efa_interfaces(instance: InstanceType, groups: Sequence[str]
                   ) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """An EFA interface on each network card that has EFA, all in the security groups `groups` (ids).

    Card 0 carries the node's IP traffic as well: `efa`, or `interface` where that card has no EFA (p6-b300).
    The others are `efa-only`: they take no IP address and give the host no second route.
    Source: eksctl pkg/cfn/builder/network_interfaces.go (device 1 on every further card);
    terraform-aws-eks modules/eks-managed-node-group/main.tf (efa-only; vpc-cni 1.18.4 or later).
    """
    primary = _interface(0, "efa" if instance.first_efa_card == 0 else "interface", groups)
    last = instance.first_efa_card + instance.efa
    return [primary, *(_interface(card, "efa-only", groups) for card in range(1, last))]


def _interface(card: int, kind: str, groups: Sequence[str]) -> ec2.CfnLaunchTemplate.NetworkInterfaceProperty:
    return ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
        network_card_index=card, device_index=min(card, 1), interface_type=kind, groups=list(groups),
        delete_on_termination=True)
