"""GPU nodes that come and go: what the Cluster Autoscaler knows of an empty group, and what it may do."""

import json

import pytest

from settings import load_settings

CHART = "Custom::AWSCDK-EKS-HelmChart"
TEMPLATE = "k8s.io/cluster-autoscaler/node-template"


def call(synth, action):
    """The AWS call of a custom resource of the cluster stack, references in it as `<logical id.attribute>`."""
    found = []
    for resource in synth.resources("ClusterStack", "Custom::AWS").values():
        parts = resource["Properties"]["Update"]["Fn::Join"][1]
        text = "".join(p if isinstance(p, str) else f"<{'.'.join(p['Fn::GetAtt'])}>" for p in parts)
        found.append(json.loads(text))
    return next(f for f in found if f["action"] == action)


def tags(synth):
    return {tag["Key"]: tag["Value"] for tag in call(synth, "createOrUpdateTags")["parameters"]["Tags"]}


@pytest.mark.parametrize(("fixture", "gpus", "efa"), [("synth_l4", "4", "1"), ("synth_h100", "8", "32"),
                                                      ("synth_block", "8", "32")])
def test_the_autoscaler_knows_gpus_and_efa_of_a_group_without_nodes(request, fixture, gpus, efa):
    written = tags(request.getfixturevalue(fixture))
    assert written[f"{TEMPLATE}/resources/nvidia.com/gpu"] == gpus
    assert written[f"{TEMPLATE}/resources/vpc.amazonaws.com/efa"] == efa


def test_it_knows_every_label_and_taint_that_the_nodes_will_have(synth_l4):
    group = synth_l4.only("ClusterStack", "AWS::EKS::Nodegroup", AmiType="AL2023_x86_64_NVIDIA")
    written = tags(synth_l4)
    labels = {k.removeprefix(f"{TEMPLATE}/label/"): v for k, v in written.items() if "/label/" in k}
    assert labels == group["Labels"]
    effects = {"NO_SCHEDULE": "NoSchedule"}
    assert {k.removeprefix(f"{TEMPLATE}/taint/"): v for k, v in written.items() if "/taint/" in k} == {
        t["Key"]: f"{t['Value']}:{effects[t['Effect']]}" for t in group["Taints"]}


def test_the_tags_are_on_the_scaling_group_that_eks_made_for_the_gpu_nodegroup(synth_l4):
    # A nodegroup's own tags do not reach it (containers-roadmap 724).
    (nodegroup,) = [name for name, r in synth_l4.resources("ClusterStack", "AWS::EKS::Nodegroup").items()
                    if "NVIDIA" in r["Properties"]["AmiType"]]
    found = call(synth_l4, "describeNodegroup")
    assert found["parameters"] == {"clusterName": "eagleray", "nodegroupName": f"<{nodegroup}.NodegroupName>"}
    for tag in call(synth_l4, "createOrUpdateTags")["parameters"]["Tags"]:
        assert tag["ResourceId"].endswith(".nodegroup.resources.autoScalingGroups.0.name>")
        assert (tag["ResourceType"], tag["PropagateAtLaunch"]) == ("auto-scaling-group", False)


def test_the_autoscaler_is_of_the_clusters_version_and_looks_for_its_groups(synth_l4):
    values = json.loads(synth_l4.only("PlatformStack", CHART, Release="cluster-autoscaler")["Values"])
    version = synth_l4.only("ClusterStack", "AWS::EKS::Cluster")["Version"]
    assert values["image"]["tag"].startswith(f"v{version}.")
    assert values["autoDiscovery"]["clusterName"] == "eagleray"
    assert values["awsRegion"] == "us-east-2"  # its pod cannot ask the node for it
    # A node is gone some minutes after its last worker: far less than the chart's ten.
    assert values["extraArgs"]["scale-down-unneeded-time"] == "2m"


def test_an_image_of_the_autoscaler_is_known_for_every_version_that_the_settings_accept():
    from k8s.releases import autoscaler_image_tag

    version = load_settings("l4").cluster.version
    assert autoscaler_image_tag(version).startswith(f"v{version}.")
    with pytest.raises(ValueError, match=r"Kubernetes 1\.99.*k8s/versions\.json"):
        autoscaler_image_tag("1.99")


def test_the_autoscaler_may_change_only_this_clusters_groups(synth_l4):
    policies = synth_l4.resources("PlatformStack", "AWS::IAM::Policy").items()
    (policy,) = [r["Properties"]["PolicyDocument"]["Statement"] for name, r in policies if "Autoscaler" in name]
    changing = [s for s in policy if any(not a.split(":")[1].startswith(("Describe", "Get"))
                                         for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"]))]
    (statement,) = changing
    assert set(statement["Action"]) == {"autoscaling:SetDesiredCapacity",
                                        "autoscaling:TerminateInstanceInAutoScalingGroup"}
    assert statement["Condition"] == {
        "StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/eagleray": "owned"}}


def test_the_autoscalers_pod_finds_its_credentials(synth_l4):
    chart = next(c for c in synth_l4.resources("PlatformStack", CHART).values()
                 if c["Properties"]["Release"] == "cluster-autoscaler")
    account = json.loads(chart["Properties"]["Values"])["rbac"]["serviceAccount"]["name"]
    associations = synth_l4.resources("PlatformStack", "AWS::EKS::PodIdentityAssociation").items()
    name, association = next((n, r["Properties"]) for n, r in associations
                             if r["Properties"]["ServiceAccount"] == account)
    assert association["Namespace"] == chart["Properties"]["Namespace"]
    assert name in chart["DependsOn"]
