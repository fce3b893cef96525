"""The parts of a managed nodegroup's launch template.

EKS refuses a template with SubnetId, IamInstanceProfile or InstanceMarketOptions, and EC2 one that has
SecurityGroupIds beside NetworkInterfaces; so neither is here, and the instance type and the subnet belong to
the nodegroup. Source: EKS user guide, launch-templates.
"""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import Fn
from aws_cdk import aws_ec2 as ec2

from eagleray.catalog import InstanceType

# MiB/s, and the IOPS that gp3 asks for it (a quarter MiB/s each). The training image is above 10 GB, and
# parallel unpacking is slower than the plain way below 600 MiB/s. Source: nodeadm, doc/examples.md.
_THROUGHPUT_MIB, _IOPS = 1000, 4000

# EKS merges this part with its own NodeConfig, which names the cluster.
_FAST_IMAGE_PULL = """\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="//"

--//
Content-Type: application/node.eks.aws

---
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  featureGates:
    FastImagePull: true

--//--
"""


def fast_image_pull() -> str:
    """User data (base64) with which AL2023 downloads and unpacks the layers of an image in parallel.

    Source: github.com/awslabs/amazon-eks-ami, nodeadm/doc/examples.md, "Enabling fast image pull".
    """
    return Fn.base64(_FAST_IMAGE_PULL)


def root_volume(gib: int) -> ec2.CfnLaunchTemplate.BlockDeviceMappingProperty:
    """AL2023's root volume: encrypted gp3 of `gib` GiB, fast enough for a large image."""
    return ec2.CfnLaunchTemplate.BlockDeviceMappingProperty(
        device_name="/dev/xvda",
        ebs=ec2.CfnLaunchTemplate.EbsProperty(
            volume_size=gib, volume_type="gp3", encrypted=True, delete_on_termination=True,
            throughput=_THROUGHPUT_MIB, iops=_IOPS),
    )


def node_only_metadata() -> ec2.CfnLaunchTemplate.MetadataOptionsProperty:
    """IMDSv2 for the node itself, out of reach for pods (hop limit 1).

    What needs IMDS runs on the host's network: nodeadm, aws-node and the Pod Identity agent. Pods get
    credentials and the region from Pod Identity, and aws-ofi-nccl reads the machine's type from DMI.
    """
    return ec2.CfnLaunchTemplate.MetadataOptionsProperty(
        http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1)


def efa_interfaces(instance: InstanceType, groups: Sequence[str]
                   ) -> list[ec2.CfnLaunchTemplate.NetworkInterfaceProperty]:
    """One EFA interface on each network card that has EFA, all in the security groups `groups` (ids).

    The first carries the node's IP traffic too (`efa`); on the others `efa-only` takes no IP address and
    adds no second route to the host. Card i > 0 wants device index 1.
    Source: eksctl network_interfaces.go; terraform-aws-eks modules/eks-managed-node-group/main.tf.
    """
    return [
        ec2.CfnLaunchTemplate.NetworkInterfaceProperty(
            device_index=0 if card == 0 else 1,
            network_card_index=card,
            interface_type="efa" if card == 0 else "efa-only",
            groups=list(groups),
            delete_on_termination=True,
        )
        for card in range(instance.efa)
    ]
