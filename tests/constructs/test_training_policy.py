"""The rules for templates: nothing to find in our own, and whatever is broken in them is found."""

import re

import pytest

from eagleray.policy import TrainingPolicy, rules
from eagleray.policy.whole_app import StackTemplate
from tests.breaking import broken, leaves, put


def stacks_of(synth):
    return [StackTemplate(name, f"{name}.template.json", template.to_json())
            for name, template in synth.templates.items()]


@pytest.fixture(scope="module")
def policy():
    return TrainingPolicy.engine()


@pytest.mark.parametrize("config", ["l4", "h100", "capacity-block", "reserved"])
def test_nothing_is_wrong_with_our_own_templates(synth, policy, config):
    assert [str(found) for found in policy.findings(stacks_of(synth(config)))[0]] == []


# Leaves that may be other than they are, and why. `-` before a path: it may be left out.
FREE = {
    "a placement group made elsewhere, which nobody here knows": r".*Placement\.GroupName",
    "what EKS is asked for, not who may reach it": r"-?(BootstrapSelfManagedAddons|ComputeConfig.*|Name|Version"
        r"|KubernetesNetworkConfig.*|ResourcesVpcConfig\.(SecurityGroupIds|SubnetIds).*|RoleArn|StorageConfig.*)",
    "a text for people": r"-?.*(Description|GroupDescription|Tags\[\d\]\.(Key|Value))",
    "the default is the same": r"-.*(NetworkCardIndex|DeleteOnTermination|HttpEndpoint|CapacityType"
        r"|NodeRepairConfig\.Enabled|ForceUpdateEnabled)",
    "one subnet or VPC is as good as another, and EC2 knows whether it exists": r".*Subnets\[0\]|-?.*VpcId",
    "any role will do that EKS accepts": r"-?NodeRole",
    "a matter of taste: EKS may replace a node that fails or one whose pods will not go": r".*(NodeRepairConfig"
        r"\.Enabled|ForceUpdateEnabled)",
    "the cluster's own group lets everything out too": r"-?SecurityGroupEgress\[0\]\.(CidrIp|IpProtocol)",
    "slower, not broken": r"-?.*UserData|-.*(Throughput|Iops)",
    "as large as one likes": r".*(VolumeSize|Iops|MaxSize|DesiredSize|MaxUnavailable)"
        r"|-.*(VolumeSize|MaxUnavailable)",
    "the value of a taint counts for nothing when pods tolerate its key": r"-?.*Taints\[0\]\.Value",
    "read by the autoscaler to tell GPU nodes that are not ready": r"-?.*accelerator",
    "nodes without GPUs may be of any type": r"SystemNodegroup -?(AmiType|ClusterName|InstanceTypes.*)",
    "EC2's tags on what is launched may be fewer": r"-.*TagSpecifications.*",
}
# The resources of which every value is broken and left out.
LOOKED_AT = ["SystemLaunchTemplate", "SystemNodegroup", "GpuLaunchTemplate", "GpuNodegroup1", "EfaSecurityGroup",
             "EfaFromItself", "EfaToItself", "PlacementGroup", "ControlPlaneCluster8"]
# What they are judged with; roles and the rest only cost time.
_NEEDED = {"AWS::EC2::LaunchTemplate", "AWS::EC2::PlacementGroup", "AWS::EC2::SecurityGroup",
           "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress", "AWS::EKS::Nodegroup",
           "AWS::EKS::Cluster"}


def is_reference(value):
    """A reference to another resource is one leaf."""
    return len(value) == 1 and next(iter(value)).startswith(("Ref", "Fn::"))


def resource(stacks, start):
    """The stack, the logical id and the properties of the resource whose id starts so."""
    found = [(stack, name, one.get("Properties", {})) for stack in stacks
             for name, one in stack.body["Resources"].items() if name.startswith(start) and one["Type"] in _NEEDED]
    assert len(found) == 1, (start, [name for _, name, _ in found])
    return found[0]


def changed(stacks, start, properties):
    """The app with other properties of one resource, or without it, and without what rules need not see."""
    target, name, _ = resource(stacks, start)
    app = []
    for stack in stacks:
        resources = {k: one for k, one in stack.body["Resources"].items() if k.startswith(tuple(LOOKED_AT))
                     and one["Type"] in _NEEDED}
        if stack is target:
            resources = {k: one for k, one in resources.items() if k != name}
            if properties is not None:
                resources[name] = {**stack.body["Resources"][name], "Properties": properties}
        app.append(StackTemplate(stack.path, stack.file, {**stack.body, "Resources": resources}))
    return app


def test_whatever_is_changed_or_left_out_is_noticed_unless_it_is_free(synth_l4, policy):
    stacks = stacks_of(synth_l4)
    labels, apps = [], []
    for start in LOOKED_AT:
        _, _, properties = resource(stacks, start)
        for path, value in leaves(properties, is_leaf=is_reference):
            for change, label in ((broken(value), path), (None, f"-{path}")):
                labels.append((start, label))
                apps.append(changed(stacks, start, put(properties, path, change)))
    free = [re.compile(pattern) for pattern in FREE.values()]
    unnoticed = [label for label, found in zip(labels, policy.findings(*apps), strict=True)
                 if not found and not any(pattern.fullmatch(text) for pattern in free
                                          for text in (label[1], " ".join(label)))]
    assert len(apps) > 100
    assert not unnoticed, "\n".join(" ".join(label) for label in unnoticed)


_NODES = "LaunchTemplateData"
_OPEN = {"PolicyDocument": {"Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}, "PolicyName": "p"}
# Where the sweep cannot go: several values at once, or a value that is wrong in a way of its own.
MUTATIONS = [
    ("efa-interfaces", "GpuLaunchTemplate", {f"{_NODES}.NetworkInterfaces[0].InterfaceType": "interface"}),
    ("efa-interfaces", "GpuLaunchTemplate", {f"{_NODES}.NetworkInterfaces": []}),
    ("efa-interfaces", "GpuNodegroup1", {"InstanceTypes": ["p5.48xlarge"]}),
    ("efa-interfaces", "GpuNodegroup1", {"InstanceTypes": ["g6.xlarge"]}),
    ("efa-interfaces", "GpuNodegroup1", {"LaunchTemplate": None}),
    ("efa-groups", "GpuLaunchTemplate", {f"{_NODES}.NetworkInterfaces[0].Groups": ["sg-0123456789abcdef0"]}),
    ("efa-traffic", "EfaToItself", None),
    ("efa-traffic", "EfaFromItself", None),
    ("efa-traffic", "EfaToItself", {"IpProtocol": "tcp"}),
    ("one-zone", "GpuNodegroup1", {"Subnets": ["subnet-1", "subnet-2"]}),
    ("placement-group", "PlacementGroup", {"Strategy": "spread"}),
    ("placement-group", "GpuLaunchTemplate", {f"{_NODES}.Placement": None}),
    ("capacity-block", "GpuNodegroup1", {"CapacityType": "CAPACITY_BLOCK"}),
    ("capacity-block", "GpuLaunchTemplate", {f"{_NODES}.InstanceMarketOptions": {"MarketType": "spot"}}),
    ("capacity-target", "GpuLaunchTemplate", {f"{_NODES}.CapacityReservationSpecification": {
        "CapacityReservationTarget": {"CapacityReservationId": "r-1"}}}),
    ("capacity-target", "GpuLaunchTemplate", {f"{_NODES}.CapacityReservationSpecification": {
        "CapacityReservationPreference": "none", "CapacityReservationTarget": {}}}),
    ("template-fields", "GpuLaunchTemplate", {f"{_NODES}.IamInstanceProfile": {"Name": "nodes"}}),
    ("template-fields", "GpuLaunchTemplate", {f"{_NODES}.NetworkInterfaces[0].SubnetId": "subnet-1"}),
    ("template-fields", "GpuLaunchTemplate", {f"{_NODES}.SecurityGroupIds": ["sg-0123456789abcdef0"]}),
    ("template-fields", "GpuLaunchTemplate", {f"{_NODES}.HibernationOptions": {"Configured": True}}),
    ("template-fields", "GpuNodegroup1", {"DiskSize": 200}),
    ("instance-type", "GpuLaunchTemplate", {f"{_NODES}.InstanceType": "g6.12xlarge"}),
    ("instance-type", "GpuNodegroup1", {"InstanceTypes": ["g6.12xlarge", "g6.24xlarge"]}),
    ("instance-type", "GpuNodegroup1", {"AmiType": "AL2023_x86_64_STANDARD"}),
    ("gpu-nodes", "GpuNodegroup1", {"Labels": {}}),
    ("gpu-nodes", "GpuNodegroup1", {"Taints": []}),
    ("nodegroup-size", "GpuNodegroup1", {"ScalingConfig": {"MinSize": 3, "DesiredSize": 3, "MaxSize": 2}}),
    ("template-version", "GpuNodegroup1", {"LaunchTemplate.Version": "1"}),
    ("node-metadata", "GpuLaunchTemplate", {f"{_NODES}.MetadataOptions": None}),
    ("node-metadata", "GpuLaunchTemplate", {f"{_NODES}.MetadataOptions.HttpPutResponseHopLimit": 2}),
    ("node-volumes", "GpuLaunchTemplate", {f"{_NODES}.BlockDeviceMappings": None}),
    ("volume-speed", "GpuLaunchTemplate", {f"{_NODES}.BlockDeviceMappings[0].Ebs.Throughput": 500}),
    ("api-endpoint", "ControlPlaneCluster8", {"ResourcesVpcConfig.EndpointPublicAccess": True}),
    ("api-endpoint", "ControlPlaneCluster8", {"ResourcesVpcConfig": {}}),
    *(("api-endpoint", "ControlPlaneCluster8", {"ResourcesVpcConfig.EndpointPublicAccess": True,
                                                "ResourcesVpcConfig.PublicAccessCidrs": wide})
      for wide in (["0.0.0.0/0"], ["203.0.113.7/32", "128.0.0.0/1"], ["::/0"])),
    ("api-logs", "ControlPlaneCluster8", {"Logging": None}),
    ("api-encryption", "ControlPlaneCluster8", {"Version": "1.27"}),
    ("api-access", "ControlPlaneCluster8", {"AccessConfig": None}),
    # New resources.
    ("bucket-encryption", "AWS::S3::Bucket", {}),
    ("bucket-public", "AWS::S3::Bucket", {}),
    ("wildcard-action", "AWS::IAM::Policy", _OPEN),
    ("wildcard-action", "AWS::IAM::Role", {"Policies": [_OPEN]}),
    ("open-ingress", "AWS::EC2::SecurityGroupIngress", {"CidrIp": "0.0.0.0/0", "IpProtocol": "tcp"}),
]


def mutated(stacks, start, changes):
    if start.startswith("AWS::"):
        network = StackTemplate("Network", "", {"Resources": {"New": {"Type": start, "Properties": changes}}})
        return [network]
    if changes is None:
        return changed(stacks, start, None)
    _, _, properties = resource(stacks, start)
    for path, value in changes.items():
        properties = put(properties, path, value)
    return changed(stacks, start, properties)


def test_a_break_in_our_templates_is_named_by_its_rule(synth_l4, policy):
    stacks = stacks_of(synth_l4)
    found = policy.findings(*(mutated(stacks, start, changes) for _, start, changes in MUTATIONS))
    missed = [case for case, findings in zip(MUTATIONS, found, strict=True)
              if case[0] not in {finding.rule for finding in findings}]
    assert missed == []


def test_every_rule_has_a_template_that_breaks_it_and_says_why():
    assert {rule for rule, _, _ in MUTATIONS} == set(rules())
    assert all(rule.reason and rule.source for rule in rules().values())
