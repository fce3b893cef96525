"""The device plugins reach every GPU node, and no other."""

import re

import pytest

from eagleray import catalog
from k8s.platform import device_plugins
from k8s.releases import efa_plugin_image

PLUGINS = ["nvidia-device-plugin", "efa-device-plugin"]


@pytest.fixture(params=PLUGINS)
def pod(request, synth_l4):
    (found,) = [m for m in synth_l4.manifests if m["metadata"]["name"] == request.param]
    assert (found["kind"], found["metadata"]["namespace"]) == ("DaemonSet", "kube-system")
    assert found["spec"]["selector"]["matchLabels"] == found["spec"]["template"]["metadata"]["labels"]
    return found["spec"]["template"]["spec"]


@pytest.fixture
def gpu_nodegroup(synth_l4):
    return synth_l4.only("ClusterStack", "AWS::EKS::Nodegroup", AmiType="AL2023_x86_64_NVIDIA")


def test_selects_by_a_label_that_the_gpu_nodegroup_has(pod, gpu_nodegroup):
    assert pod["nodeSelector"].items() <= gpu_nodegroup["Labels"].items()
    assert pod["nodeSelector"]


def test_tolerates_every_taint_of_the_gpu_nodegroup(pod, gpu_nodegroup):
    effects = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
    for taint in gpu_nodegroup["Taints"]:
        assert {"key": taint["Key"], "operator": "Exists", "effect": effects[taint["Effect"]]} in pod["tolerations"]


def test_registers_with_the_kubelet_and_is_evicted_last(pod):
    (container,) = pod["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    paths = {volume["hostPath"]["path"]: mounted[volume["name"]] for volume in pod["volumes"]}
    assert paths["/var/lib/kubelet/device-plugins"] == "/var/lib/kubelet/device-plugins"
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["automountServiceAccountToken"] is False


def test_only_the_efa_plugin_has_the_run_of_the_host(synth_l4):
    pods = {m["metadata"]["name"]: m["spec"]["template"]["spec"]
            for m in synth_l4.manifests if m["kind"] == "DaemonSet"}
    privileged = {name: pod["containers"][0]["securityContext"].get("privileged", False)
                  for name, pod in pods.items()}
    assert privileged == {"nvidia-device-plugin": False, "efa-device-plugin": True}
    assert [name for name, pod in pods.items() if pod.get("hostNetwork")] == ["efa-device-plugin"]
    assert "/dev/infiniband" in [v["hostPath"]["path"] for v in pods["efa-device-plugin"]["volumes"]]


def test_every_image_has_an_exact_version(synth_l4, ray_pods):
    pods = [m["spec"]["template"]["spec"] for m in synth_l4.manifests if m["kind"] == "DaemonSet"]
    images = [c["image"] for pod in [*pods, *ray_pods.values()] for c in pod["containers"]]
    assert len(images) == 5
    assert all(re.search(r":.*\d", image) and not image.endswith(":latest") for image in images)


def test_the_efa_image_is_pulled_in_the_region_of_the_nodes(synth):
    tokyo = synth("l4", "region=ap-northeast-1,network.zone=ap-northeast-1a,network.second_zone=ap-northeast-1c")
    (image,) = [m["spec"]["template"]["spec"]["containers"][0]["image"]
                for m in tokyo.manifests if m["metadata"]["name"] == "efa-device-plugin"]
    assert image.startswith("602401143452.dkr.ecr.ap-northeast-1.amazonaws.com/eks/aws-efa-k8s-device-plugin:")


@pytest.mark.parametrize(("region", "account"), [("us-east-2", "602401143452"), ("ap-east-1", "800184023465"),
                                                 ("il-central-1", "066635153087")])
def test_each_region_has_its_own_registry(region, account):
    assert efa_plugin_image(region).startswith(f"{account}.dkr.ecr.{region}.amazonaws.com/")


def test_every_region_that_the_settings_allow_has_a_registry():
    for region in catalog.regions():
        assert re.match(r"\d{12}\.dkr\.ecr\." + region, efa_plugin_image(region))


def test_an_unknown_region_says_where_to_add_it():
    with pytest.raises(ValueError, match=r"xx-west-1.*efa_image_accounts\.json"):
        device_plugins("xx-west-1")
