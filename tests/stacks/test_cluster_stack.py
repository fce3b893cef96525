"""The cluster and its nodes as they will stand in AWS."""

import json

import pytest

STACK = "ClusterStack"


def nodegroup(synth, ami_type):
    """Properties of the nodegroup with that AMI type, and the data of its launch template."""
    group = synth.only(STACK, "AWS::EKS::Nodegroup", AmiType=ami_type)
    templates = synth.resources(STACK, "AWS::EC2::LaunchTemplate")
    return group, templates[group["LaunchTemplate"]["Id"]["Ref"]]["Properties"]["LaunchTemplateData"]


def gpu(synth):
    return nodegroup(synth, "AL2023_x86_64_NVIDIA")


def system(synth):
    return nodegroup(synth, "AL2023_x86_64_STANDARD")


def named(value):
    """Text of a value with its references, to look for a logical id in it."""
    return json.dumps(value)


# Control plane

def test_cluster_has_the_name_and_version_of_the_settings(synth_l4, synth_h100):
    cluster = synth_l4.only(STACK, "AWS::EKS::Cluster")
    assert (cluster["Name"], cluster["Version"]) == ("eagleray", "1.36")
    assert synth_h100.only(STACK, "AWS::EKS::Cluster")["Name"] == "eagleray-h100"


def test_kubectl_is_the_layer_of_the_clusters_version(synth_l4):
    # 1.36 with the v30 layer would synthesize without a word; the layer's kubectl is what applies manifests.
    version = synth_l4.only(STACK, "AWS::EKS::Cluster")["Version"]
    layers = [r["Properties"].get("Description", "") for r in
              synth_l4.resources(STACK, "AWS::Lambda::LayerVersion").values()]
    assert any(f"kubectl/kubectl {version}." in text for text in layers), layers
    handler = next(r["Properties"] for r in synth_l4.resources(STACK, "AWS::Lambda::Function").values()
                   if "kubectl" in r["Properties"]["Description"])
    assert any("Kubectl" in layer["Ref"] for layer in handler["Layers"])


def test_api_is_private_unless_addresses_are_named(synth_l4, synth_changed):
    private = synth_l4.only(STACK, "AWS::EKS::Cluster")["ResourcesVpcConfig"]
    assert (private["EndpointPrivateAccess"], private["EndpointPublicAccess"]) == (True, False)
    public = synth_changed.only(STACK, "AWS::EKS::Cluster")["ResourcesVpcConfig"]
    assert (public["EndpointPrivateAccess"], public["EndpointPublicAccess"]) == (True, True)
    assert public["PublicAccessCidrs"] == ["203.0.113.7/32", "198.51.100.0/24"]


def test_kubectl_lambda_reaches_the_private_api_from_the_private_subnets(synth_l4):
    group = next(name for name, g in synth_l4.resources(STACK, "AWS::EC2::SecurityGroup").items()
                 if "kubectl" in g["Properties"]["GroupDescription"])
    functions = [f for f in synth_l4.resources(STACK, "AWS::Lambda::Function").values()
                 if "KubectlProvider" in f["Metadata"]["aws:cdk:path"]]
    assert functions
    for function in functions:
        vpc = function["Properties"]["VpcConfig"]
        assert len(vpc["SubnetIds"]) == 2
        assert "privateSubnet" in named(vpc["SubnetIds"])
        # Not EKS's own group: what is left of a deleted Lambda would keep EKS from deleting that.
        assert vpc["SecurityGroupIds"] == [{"Fn::GetAtt": [group, "GroupId"]}]
    open_to_it = [r["Properties"] for r in synth_l4.resources(STACK, "AWS::EC2::SecurityGroupIngress").values()
                  if group in named(r["Properties"]["SourceSecurityGroupId"])]
    assert {(r["FromPort"], r["ToPort"]) for r in open_to_it} == {(443, 443)}
    assert any("ControlPlaneSecurityGroup" in named(r["GroupId"]) for r in open_to_it)


def test_all_control_plane_logs_go_to_a_group_that_is_there_first_and_leaves_with_the_stack(
        synth_l4, synth_changed):
    cluster_id, cluster = next(iter(synth_l4.resources(STACK, "AWS::EKS::Cluster").items()))
    types = {t["Type"] for t in cluster["Properties"]["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert types == {"api", "audit", "authenticator", "controllerManager", "scheduler"}

    group_id, group = next((name, g) for name, g in synth_l4.resources(STACK, "AWS::Logs::LogGroup").items()
                           if "LogGroupName" in g["Properties"])
    assert group["Properties"] == {"LogGroupName": "/aws/eks/eagleray/cluster", "RetentionInDays": 30}
    assert group["DeletionPolicy"] == "Delete"
    assert group_id in cluster["DependsOn"], cluster_id
    groups = synth_changed.resources(STACK, "AWS::Logs::LogGroup").values()
    assert {g["Properties"]["RetentionInDays"] for g in groups} == {7}


def cluster_admins(synth):
    entries = [r["Properties"] for r in synth.resources(STACK, "AWS::EKS::AccessEntry").values()]
    assert all("AmazonEKSClusterAdminPolicy" in named(e["AccessPolicies"]) for e in entries)
    return {named(e["PrincipalArn"]) for e in entries}


def test_admins_are_the_roles_of_the_settings_and_the_lambda_that_applies_manifests(synth_l4, synth_changed):
    assert synth_l4.only(STACK, "AWS::EKS::Cluster")["AccessConfig"]["AuthenticationMode"] == "API"
    lambda_role = cluster_admins(synth_l4)
    assert len(lambda_role) == 1
    assert "KubectlProviderHandler" in next(iter(lambda_role))
    assert cluster_admins(synth_changed) - lambda_role == {
        '"arn:aws:iam::123456789012:role/Admin"', '"arn:aws:iam::123456789012:role/Team"'}


# Add-ons

def addons(synth):
    found = synth.resources(STACK, "AWS::EKS::Addon")
    return [(r["Properties"]["AddonName"], name, r.get("DependsOn", [])) for name, r in found.items()]


def test_each_addon_is_there_exactly_once(synth_l4):
    names = sorted(name for name, _, _ in addons(synth_l4))
    assert names == ["coredns", "eks-pod-identity-agent", "kube-proxy", "vpc-cni"]
    # Otherwise EKS installs its own copies of three of them as well.
    assert synth_l4.only(STACK, "AWS::EKS::Cluster")["BootstrapSelfManagedAddons"] is False


def test_nodes_wait_for_their_network_and_dns_waits_for_nodes(synth_l4):
    by_name = {name: (logical_id, after) for name, logical_id, after in addons(synth_l4)}
    groups = synth_l4.resources(STACK, "AWS::EKS::Nodegroup")
    before_nodes = {by_name[n][0] for n in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")}
    for group in groups.values():
        assert before_nodes <= set(group["DependsOn"])
    system_id = next(n for n, g in groups.items() if g["Properties"]["AmiType"] == "AL2023_x86_64_STANDARD")
    assert system_id in by_name["coredns"][1]
    for name in ("vpc-cni", "kube-proxy", "eks-pod-identity-agent"):
        assert not set(by_name[name][1]) & set(groups)


# Nodes

def test_system_nodes(synth_l4, synth_changed):
    group, template = system(synth_l4)
    assert group["InstanceTypes"] == ["m7i.xlarge"]
    assert group["ScalingConfig"] == {"MinSize": 1, "DesiredSize": 1, "MaxSize": 1}
    assert system(synth_changed)[0]["ScalingConfig"] == {"MinSize": 2, "DesiredSize": 2, "MaxSize": 2}
    assert "Taints" not in group
    assert template["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 100


@pytest.mark.parametrize("group_of", [system, gpu], ids=["system", "gpu"])
def test_all_nodes_are_in_the_private_subnet_of_the_training_zone(synth_l4, group_of):
    subnet, = group_of(synth_l4)[0]["Subnets"]
    exported = next(o for o in synth_l4.templates["NetworkStack"].to_json()["Outputs"].values()
                    if o.get("Export", {}).get("Name") == subnet["Fn::ImportValue"])
    properties = synth_l4.resources("NetworkStack", "AWS::EC2::Subnet")[exported["Value"]["Ref"]]["Properties"]
    assert properties["AvailabilityZone"] == "us-east-2a"
    assert properties["MapPublicIpOnLaunch"] is False


@pytest.mark.parametrize("group_of", [system, gpu], ids=["system", "gpu"])
def test_disks_are_encrypted_and_instance_metadata_is_for_the_node_alone(synth_l4, group_of):
    template = group_of(synth_l4)[1]
    disk, = template["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/xvda"
    assert (disk["Ebs"]["Encrypted"], disk["Ebs"]["VolumeType"]) == (True, "gp3")
    assert template["MetadataOptions"] == {
        "HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1}


def test_gpu_nodes_are_as_many_as_the_settings_say_and_none_before_a_job_needs_them(synth_l4, synth_changed):
    group, _ = gpu(synth_l4)
    assert group["InstanceTypes"] == ["g6.12xlarge"]
    assert group["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 2}
    assert gpu(synth_changed)[0]["ScalingConfig"] == {"MinSize": 0, "DesiredSize": 0, "MaxSize": 3}


def test_gpu_nodes_carry_the_label_that_the_device_plugin_wants_and_the_taint(synth_l4):
    group, _ = gpu(synth_l4)
    assert group["Labels"] == {"nvidia.com/gpu.present": "true", "k8s.amazonaws.com/accelerator": "l4"}
    assert group["Taints"] == [{"Key": "nvidia.com/gpu", "Value": "true", "Effect": "NO_SCHEDULE"}]


def test_gpu_disk_and_user_data_are_made_for_a_large_image(synth_l4, synth_h100):
    _, template = gpu(synth_l4)
    disk = template["BlockDeviceMappings"][0]["Ebs"]
    assert disk["VolumeSize"] == 200
    assert gpu(synth_h100)[1]["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 500
    # Parallel unpacking is slower than the plain way below 600 MiB/s, and gp3 wants an IOPS for 0.25 MiB/s.
    assert disk["Throughput"] >= 600
    assert disk["Iops"] * 0.25 >= disk["Throughput"]
    user_data = template["UserData"]["Fn::Base64"]
    assert "FastImagePull: true" in user_data
    assert "Content-Type: application/node.eks.aws" in user_data


def test_an_update_of_gpu_nodes_needs_no_spare_ones(synth_l4):
    assert gpu(synth_l4)[0]["UpdateConfig"] == {"MaxUnavailable": 1, "UpdateStrategy": "MINIMAL"}


@pytest.mark.parametrize(("fixture", "cards"), [("synth_l4", 1), ("synth_h100", 32)])
def test_there_is_an_efa_interface_on_every_network_card(request, fixture, cards):
    interfaces = gpu(request.getfixturevalue(fixture))[1]["NetworkInterfaces"]
    layout = [(i["NetworkCardIndex"], i["DeviceIndex"], i["InterfaceType"]) for i in interfaces]
    assert layout == [(0, 0, "efa")] + [(card, 1, "efa-only") for card in range(1, cards)]


@pytest.mark.parametrize("fixture", ["synth_l4", "synth_h100"])
def test_every_interface_is_in_the_clusters_group_and_in_the_efa_group(request, fixture):
    for interface in gpu(request.getfixturevalue(fixture))[1]["NetworkInterfaces"]:
        cluster_group, efa_group = interface["Groups"]
        assert cluster_group["Fn::GetAtt"][1] == "ClusterSecurityGroupId"
        assert "EfaSecurityGroup" in efa_group["Fn::ImportValue"]


def keys(value):
    """Every key at any depth."""
    if isinstance(value, dict):
        return set(value) | {k for v in value.values() for k in keys(v)}
    return {k for v in value for k in keys(v)} if isinstance(value, list) else set()


@pytest.mark.parametrize("fixture", ["synth_l4", "synth_h100", "synth_changed"])
def test_nothing_that_eks_forbids_is_in_a_launch_template(request, fixture):
    synth = request.getfixturevalue(fixture)
    forbidden = {"SubnetId", "IamInstanceProfile", "InstanceMarketOptions", "HibernationOptions",
                 "InstanceInitiatedShutdownBehavior", "SecurityGroupIds", "SecurityGroups", "ImageId",
                 "InstanceType", "InstanceRequirements", "KeyName"}
    for group_of in (system, gpu):
        group, template = group_of(synth)
        assert not forbidden & keys(template)
        assert not {"DiskSize", "RemoteAccess"} & set(group)
        assert len(group["InstanceTypes"]) == 1


# Capacity

def test_on_demand_nodes_are_launched_in_the_placement_group_of_the_network(synth_l4):
    _, template = gpu(synth_l4)
    assert "PlacementGroup" in template["Placement"]["GroupName"]["Fn::ImportValue"]
    assert "CapacityReservationSpecification" not in template


def test_a_reservation_is_the_target_and_no_placement_group_is_forced_on_it(synth_changed):
    _, template = gpu(synth_changed)
    assert template["CapacityReservationSpecification"] == {
        "CapacityReservationTarget": {"CapacityReservationId": "cr-0123456789abcdef0"}}
    assert "Placement" not in template


def test_a_reservation_made_in_a_placement_group_is_used_there(synth):
    reserved = synth("l4", "gpu.capacity.kind=reservation,gpu.capacity.id=cr-0123456789abcdef0,"
                           "gpu.capacity.placement_group=team-group")
    assert gpu(reserved)[1]["Placement"] == {"GroupName": "team-group"}
    assert not reserved.resources("NetworkStack", "AWS::EC2::PlacementGroup")
