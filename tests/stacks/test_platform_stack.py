"""Plugins and operator: what is installed, and in which order it comes and goes."""

import json

from k8s.rules import Manifest, check
from k8s.rules.nodes import around_app

STACK = "PlatformStack"
MANIFEST = "Custom::AWSCDK-EKS-KubernetesResource"
CHART = "Custom::AWSCDK-EKS-HelmChart"


def operator_values(synth):
    return json.loads(synth.only(STACK, CHART, Release="kuberay-operator")["Values"])


def applied(synth):
    """Objects of the stack's manifests, by logical id."""
    return {name: json.loads(resource["Properties"]["Manifest"])[0]
            for name, resource in synth.resources(STACK, MANIFEST).items()}


def test_namespaces_and_both_plugins_are_applied_one_resource_each(synth_l4):
    objects = [(o["kind"], o["metadata"]["name"]) for o in applied(synth_l4).values()]
    assert sorted(objects) == [("DaemonSet", "efa-device-plugin"), ("DaemonSet", "nvidia-device-plugin"),
                               ("Namespace", "kuberay-operator"), ("Namespace", "ray")]


def test_the_operator_is_kuberay_1_7_0_from_its_own_repository(synth_l4):
    chart = synth_l4.only(STACK, CHART, Release="kuberay-operator")
    assert (chart["Chart"], chart["Version"]) == ("kuberay-operator", "1.7.0")
    assert chart["Repository"] == "https://ray-project.github.io/kuberay-helm/"


def test_the_operator_may_only_touch_the_namespace_of_the_jobs(synth):
    chart = synth("l4", "ray.namespace=research").only(STACK, CHART, Release="kuberay-operator")
    values = json.loads(chart["Values"])
    assert values["watchNamespace"] == ["research"]
    # watchNamespace alone would leave it a ClusterRole that reads secrets everywhere.
    assert values["singleNamespaceInstall"] is True
    assert chart["Namespace"] == "kuberay-operator"


def test_the_operator_watches_where_the_ray_objects_are(synth_l4):
    watched = json.loads(synth_l4.only(STACK, CHART, Release="kuberay-operator")["Values"])["watchNamespace"]
    placed = {m["metadata"]["namespace"] for m in synth_l4.manifests if m["apiVersion"].startswith("ray.io/")}
    assert placed == set(watched)


def test_a_failed_install_is_undone_within_the_time_of_a_lambda(synth_l4):
    for chart in synth_l4.resources(STACK, CHART).values():
        chart = chart["Properties"]
        assert (chart["Wait"], chart["Atomic"]) == (True, True)
        minutes = int(chart["Timeout"].removesuffix("s")) / 60
        assert 2 * minutes < 15, "the install waits, and then its undoing"


def test_operator_comes_after_and_goes_before_namespaces_and_plugins(synth_l4):
    (chart,) = [c for c in synth_l4.resources(STACK, CHART).values() if "KubeRay" in c["Metadata"]["aws:cdk:path"]]
    assert set(chart["DependsOn"]) == set(applied(synth_l4))


def test_platform_stands_on_the_cluster_and_under_the_training(synth_l4):
    order = {name: [d.node.id for d in stack.dependencies] for name, stack in synth_l4.stacks.items()}
    assert "ClusterStack" in order["PlatformStack"]
    assert "PlatformStack" in order["TrainingStack"]


def test_objects_are_not_pruned_nor_created_blindly(synth_l4):
    for resource in synth_l4.resources(STACK, MANIFEST).values():
        assert "PruneLabel" not in resource["Properties"]
        assert resource["Properties"]["Overwrite"] is True
        assert "SkipValidation" not in resource["Properties"]


def test_the_operators_namespace_takes_no_pod_with_more_rights_than_the_charts_own(synth_l4):
    levels = {m["metadata"]["name"]: m["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
              for m in synth_l4.manifests if m["kind"] == "Namespace"}
    assert levels == {"kuberay-operator": "restricted", "ray": "baseline"}
    # The chart's own are those of a restricted pod; given here, they would replace them.
    assert not {"securityContext", "podSecurityContext"} & set(operator_values(synth_l4))


def test_every_image_can_be_pinned_by_its_digest(synth):
    digests = [f"sha256:{letter * 64}" for letter in "abcd"]
    image = f"registry.example/ray@{digests[3]}"
    app = synth("l4", f'ray.image="{image}",digests.kuberay_operator="{digests[0]}",'
                f'digests.nvidia_device_plugin="{digests[1]}",digests.efa_device_plugin="{digests[2]}"')
    operator = operator_values(app)["image"]
    # The chart joins the two with a colon.
    assert f"{operator['repository']}:{operator['tag']}" == f"quay.io/kuberay/operator:v1.7.0@{digests[0]}"
    pods = {m["metadata"]["name"]: m["spec"]["template"]["spec"] for m in app.manifests if m["kind"] == "DaemonSet"}
    assert pods["nvidia-device-plugin"]["containers"][0]["image"].endswith(f":v0.20.0@{digests[1]}")
    assert pods["efa-device-plugin"]["containers"][0]["image"].endswith(f":v0.5.20@{digests[2]}")
    ray = next(m for m in app.manifests if m["kind"] == "RayCluster")["spec"]
    job = next(m for m in app.manifests if m["kind"] == "RayJob")["spec"]
    templates = [ray["headGroupSpec"]["template"], ray["workerGroupSpecs"][0]["template"],
                 job["submitterPodTemplate"]]
    assert {t["spec"]["containers"][0]["image"] for t in templates} == {image}
    assert check([Manifest(body) for body in app.manifests], around_app(app.outdir)) == []
