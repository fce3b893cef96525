"""The nodegroups of a training cluster."""

from __future__ import annotations

from datetime import datetime
from typing import cast

from aws_cdk import CfnTag, TimeZone
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_eks_v2 as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_scheduler as scheduler
from aws_cdk import aws_scheduler_targets as targets
from constructs import Construct

from eagleray.autoscaling import NodegroupScalingGroup, node_template_tags
from eagleray.capacity import Capacity
from eagleray.catalog import instance_type as catalog_entry
from eagleray.cluster import TrainingCluster
from eagleray.launch_template import (
    efa_interfaces,
    fast_image_pull,
    fast_root_volume,
    node_only_metadata,
    root_volume,
)


class SystemNodegroup(Construct):
    """Nodes without GPU, for what runs the cluster: operators, DNS and the Ray head.

    Attributes:
        nodegroup: the EKS managed nodegroup.
    """

    def __init__(self, scope: Construct, construct_id: str, *, control_plane: TrainingCluster,
                 subnet: ec2.ISubnet, instance_type: str, nodes: int, volume_gib: int) -> None:
        """`nodes` instances of `instance_type` in `subnet`, with a root volume of `volume_gib` GiB."""
        super().__init__(scope, construct_id)
        name = f"{control_plane.name}-system"
        template = ec2.CfnLaunchTemplate(
            self, "LaunchTemplate",
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                block_device_mappings=[root_volume(volume_gib)],
                metadata_options=node_only_metadata(),
                tag_specifications=_names(name),
            ))
        self.nodegroup = eks.Nodegroup(
            self, "Nodegroup",
            cluster=cast(eks.ICluster, control_plane.cluster),
            subnets=ec2.SubnetSelection(subnets=[subnet]),
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_STANDARD,
            instance_types=[ec2.InstanceType(instance_type)],
            launch_template_spec=_latest(template),
            min_size=nodes, desired_size=nodes, max_size=nodes,
            enable_node_auto_repair=True,
        )
        self.nodegroup.node.add_dependency(*control_plane.before_nodes)


class GpuNodegroup(Construct):
    """GPU nodes with an EFA interface on every network card that has EFA, close together in one subnet.

    The taint keeps everything else off the expensive nodes; the label is what NVIDIA's device plugin looks
    for, since the AL2023 NVIDIA image does not set it. EKS replaces a node whose kubelet stays silent (auto
    repair): a job that restarts from its checkpoint needs all its nodes.

    The group is made empty: the Cluster Autoscaler brings nodes for pods that need them, and takes idle ones.
    Its size belongs to the autoscaler. CloudFormation writes the 0 once more only when the greatest size
    changes; that job is replaced by the same deployment, and goes on from its checkpoint.

    Attributes:
        nodegroup: the EKS managed nodegroup.
        scaling_group: the Auto Scaling group behind it.
    """

    def __init__(self, scope: Construct, construct_id: str, *, control_plane: TrainingCluster,
                 subnet: ec2.ISubnet, efa_security_group: ec2.ISecurityGroup, instance_type: str, nodes: int,
                 volume_gib: int, capacity: Capacity, log_days: int) -> None:
        """Up to `nodes` instances of `instance_type` (one of the catalog with GPU and EFA) in `subnet`, with a
        root volume of `volume_gib` GiB; logs of Lambdas are kept for at least `log_days` days."""
        super().__init__(scope, construct_id)
        name = f"{control_plane.name}-gpu"
        # EKS adds the cluster's own group only when a template names none.
        groups = [control_plane.cluster.cluster_security_group_id, efa_security_group.security_group_id]
        template = ec2.CfnLaunchTemplate(
            self, "LaunchTemplate",
            version_description=capacity.version_description(instance_type),
            launch_template_data=ec2.CfnLaunchTemplate.LaunchTemplateDataProperty(
                network_interfaces=efa_interfaces(catalog_entry(instance_type), groups),
                placement=capacity.placement,
                instance_type=instance_type if capacity.market else None,
                instance_market_options=capacity.market,
                capacity_reservation_specification=capacity.reservation_target,
                block_device_mappings=[fast_root_volume(volume_gib)],
                metadata_options=node_only_metadata(),
                user_data=fast_image_pull(),
                tag_specifications=_names(name),
            ))
        # By the second one the autoscaler knows that a node without GPUs is not ready yet, rather than too small.
        instance = catalog_entry(instance_type)
        labels = {"nvidia.com/gpu.present": "true", "k8s.amazonaws.com/accelerator": str(instance.gpu)}
        self.nodegroup = eks.Nodegroup(
            self, "Nodegroup",
            cluster=cast(eks.ICluster, control_plane.cluster),
            subnets=ec2.SubnetSelection(subnets=[subnet]),
            ami_type=eks.NodegroupAmiType.AL2023_X86_64_NVIDIA,
            launch_template_spec=_latest(template),
            capacity_type=capacity.nodegroup_type,
            min_size=0, desired_size=0, max_size=nodes,
            labels=labels,
            taints=[eks.TaintSpec(key="nvidia.com/gpu", value="true", effect=eks.TaintEffect.NO_SCHEDULE)],
            enable_node_auto_repair=True,
        )
        resource = cast(eks.CfnNodegroup, self.nodegroup.node.default_child)
        # Past the construct, which takes p5 and other newer types for machines without GPU. For a Capacity Block
        # the type is in the launch template, and EKS takes it from one place only.
        resource.instance_types = None if capacity.market else [instance_type]
        # Old nodes go before new ones come: an update must not need more GPUs than the quota or the
        # reservation has.
        resource.update_config = eks.CfnNodegroup.UpdateConfigProperty(
            max_unavailable=1, update_strategy="MINIMAL")
        self.nodegroup.node.add_dependency(*control_plane.before_nodes)
        self.scaling_group = NodegroupScalingGroup(
            self, "ScalingGroup", cluster_name=control_plane.name, nodegroup=resource, log_days=log_days,
            tags=node_template_tags(instance, labels, {"nvidia.com/gpu": "true:NoSchedule"}))
        if capacity.starts:
            self._fill_at(capacity.starts, control_plane.name, resource, nodes)

    def _fill_at(self, moment: datetime, cluster: str, nodegroup: eks.CfnNodegroup, nodes: int) -> None:
        """Let EventBridge Scheduler ask EKS for the nodes when the Capacity Block starts.

        Not a scheduled action of the Auto Scaling group: only EKS knows that group's name.
        """
        scheduler.Schedule(
            self, "Start",
            description=f"The {nodes} nodes of {cluster} come when their Capacity Block starts",
            schedule=scheduler.ScheduleExpression.at(moment, TimeZone.ETC_UTC),
            target=cast(scheduler.IScheduleTarget, targets.Universal(
                service="eks", action="updateNodegroupConfig",
                # Universal targets spell EKS's clusterName this way.
                input=scheduler.ScheduleTargetInput.from_object({
                    "ClusterName": cluster,
                    "NodegroupName": nodegroup.attr_nodegroup_name,
                    "ScalingConfig": {"MinSize": 0, "DesiredSize": nodes, "MaxSize": nodes},
                }),
                policy_statements=[iam.PolicyStatement(
                    actions=["eks:UpdateNodegroupConfig"], resources=[nodegroup.attr_arn])],
            )),
        )


def _latest(template: ec2.CfnLaunchTemplate) -> eks.LaunchTemplateSpec:
    return eks.LaunchTemplateSpec(id=template.ref, version=template.attr_latest_version_number)


def _names(name: str) -> list[ec2.CfnLaunchTemplate.TagSpecificationProperty]:
    """Tags of instances and volumes; a nodegroup's own tags do not reach them."""
    return [ec2.CfnLaunchTemplate.TagSpecificationProperty(
                resource_type=kind, tags=[CfnTag(key="Name", value=name)]) for kind in ("instance", "volume")]
