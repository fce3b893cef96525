"""The standing RayCluster, field by field as KubeRay and the scheduler would take it."""

import json
import math
import re
from dataclasses import replace

import pytest
from lookup import only, variables

from eagleray import catalog
from k8s.ray_cluster import RayPods, WorkerGroup, ray_cluster_spec
from k8s.worker_env import efa_environment
from training.config import TrainJob


def cores(amount):
    return float(amount[:-1]) / 1000 if amount.endswith("m") else float(amount)


def gib(amount):
    return float(amount[:-2]) / (1024 if amount.endswith("Mi") else 1)


# Head

def test_the_head_schedules_no_work(ray_cluster):
    assert ray_cluster["spec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


def test_the_head_has_no_gpu_and_the_cuda_image_does_not_look_for_one(head_pod):
    assert not [r for r in head_pod["containers"][0]["resources"]["limits"] if "/" in r]
    assert variables(head_pod)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_head_cannot_land_on_a_gpu_node(head_pod, submitter_pod):
    # They are tainted, and these pods tolerate nothing.
    assert "tolerations" not in head_pod
    assert "tolerations" not in submitter_pod


def test_head_operator_autoscalers_and_two_submitters_fit_the_system_node(synth_l4, head_pod, submitter_pod):
    # Two: a job that replaces another is there before the other goes.
    charts = synth_l4.resources("PlatformStack", "Custom::AWSCDK-EKS-HelmChart").values()
    ray_autoscaler = only(synth_l4.manifests, "RayCluster")["spec"]["autoscalerOptions"]
    requests = [head_pod["containers"][0]["resources"]["requests"], ray_autoscaler["resources"]["requests"],
                *(json.loads(chart["Properties"]["Values"])["resources"]["requests"] for chart in charts),
                *2 * [submitter_pod["containers"][0]["resources"]["requests"]]]
    node = catalog.instance_type("m7i.xlarge")
    daemons_cpu, daemons_gib = 0.6, 1.0  # vpc-cni, kube-proxy, pod identity agent, two coredns
    assert sum(cores(r["cpu"]) for r in requests) + daemons_cpu <= node.alloc_cpu_m / 1000
    assert sum(gib(r["memory"]) for r in requests) + daemons_gib <= node.alloc_mem_mib / 1024


def test_the_dashboard_has_no_address_outside_the_cluster(synth_l4, ray_cluster):
    assert ray_cluster["spec"]["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "enableIngress" not in ray_cluster["spec"]["headGroupSpec"]
    assert not [m for m in synth_l4.manifests if m["kind"] in ("Service", "Ingress")]


def test_ray_asks_for_a_token_that_kuberay_makes_when_the_cluster_comes_up(ray_cluster):
    # No secretName: KubeRay makes the Secret, so nobody has to write a token anywhere.
    assert ray_cluster["spec"]["authOptions"] == {"mode": "token"}


def test_no_token_and_no_secret_lies_in_what_is_synthesized(synth_l4, ray_pods):
    assert not [m for m in synth_l4.manifests if m["kind"] == "Secret"]
    for pod in ray_pods.values():
        assert not [name for name in variables(pod) if name.startswith("RAY_AUTH")]
    for file in [*synth_l4.outdir.glob("*.template.json"), *(synth_l4.outdir / "manifests").glob("*ray*.yaml")]:
        assert not re.search(r"RAY_AUTH_TOKEN|auth_token|Bearer ", file.read_text())


# Workers

def test_gpus_are_one_number_for_kubernetes_ray_and_the_job(synth_l4, synth_h100):
    for synth, gpus in ((synth_l4, 4), (synth_h100, 8)):
        (group,) = only(synth.manifests, "RayCluster")["spec"]["workerGroupSpecs"]
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        (settings,) = [m for m in synth.manifests if "train.json" in m.get("data", {})]
        job = TrainJob.model_validate_json(settings["data"]["train.json"])
        assert limits["nvidia.com/gpu"] == group["rayStartParams"]["num-gpus"] == str(gpus)
        assert job.placement.workers_per_node == gpus
        assert job.placement.nodes == group["maxReplicas"] == 2


@pytest.mark.parametrize(("fixture", "count"), [("synth_l4", 1), ("synth_h100", 32)])
def test_a_worker_gets_every_efa_interface_of_its_node(request, fixture, count):
    synth = request.getfixturevalue(fixture)
    (group,) = only(synth.manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    templates = synth.resources("ClusterStack", "AWS::EC2::LaunchTemplate").values()
    interfaces = [i for t in templates
                  for i in t["Properties"]["LaunchTemplateData"].get("NetworkInterfaces", [])]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["vpc.amazonaws.com/efa"] == str(count) == str(len(interfaces))


def test_requests_equal_limits(worker_pod):
    resources = worker_pod["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == "40"
    assert resources["limits"]["memory"] == "160Gi"


@pytest.mark.parametrize(("fixture", "node"), [("synth_l4", "g6.12xlarge"), ("synth_h100", "p5.48xlarge")])
def test_exactly_one_worker_fits_a_node(request, fixture, node):
    manifests = request.getfixturevalue(fixture).manifests
    (group,) = only(manifests, "RayCluster")["spec"]["workerGroupSpecs"]
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    entry = catalog.instance_type(node)
    fits = [entry.gpus / int(limits["nvidia.com/gpu"]), entry.efa / int(limits["vpc.amazonaws.com/efa"]),
            entry.alloc_cpu_m / 1000 / cores(limits["cpu"]), entry.alloc_mem_mib / 1024 / gib(limits["memory"])]
    assert min(math.floor(f) for f in fits) == 1


def test_worker_pods_come_for_a_job_and_go_when_they_are_idle(synth, ray_cluster, worker_group):
    assert ray_cluster["spec"]["enableInTreeAutoscaling"] is True
    assert ray_cluster["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] == 5 * 60
    assert (worker_group["minReplicas"], worker_group["maxReplicas"]) == (0, 2)
    # The number in the cluster is the autoscaler's: applying this again must not change it.
    assert "replicas" not in worker_group
    longer = only(synth("l4", "gpu.idle_minutes=90").manifests, "RayCluster")
    assert longer["spec"]["autoscalerOptions"]["idleTimeoutSeconds"] == 90 * 60


def test_a_pod_that_came_alone_waits_for_the_others(ray_cluster):
    # v1 takes an idle pod away although a job waits for a second one.
    assert ray_cluster["spec"]["autoscalerOptions"]["version"] == "v2"


@pytest.mark.parametrize(("minutes", "seconds"), [(40, 3600), (600, 36000)])
def test_the_autoscaler_gives_no_pod_up_before_the_job_does(synth, minutes, seconds):
    cluster = only(synth("l4", f"ray.start_minutes={minutes}").manifests, "RayCluster")
    patience = {e["name"]: e["value"] for e in cluster["spec"]["autoscalerOptions"]["env"]}
    assert patience == {"RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S": str(seconds)}


def test_only_the_autoscaler_can_talk_to_kubernetes(ray_cluster, head_pod, worker_pod):
    assert head_pod["automountServiceAccountToken"] is worker_pod["automountServiceAccountToken"] is False
    (token,) = [v["name"] for v in head_pod["volumes"]
                if any("serviceAccountToken" in s for s in v.get("projected", {}).get("sources", []))]
    (mount,) = ray_cluster["spec"]["autoscalerOptions"]["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (token, "/var/run/secrets/kubernetes.io/serviceaccount")
    assert token not in [m["name"] for m in head_pod["containers"][0]["volumeMounts"]]
    assert token not in [v["name"] for v in worker_pod["volumes"]]


def test_workers_tolerate_the_taint_of_the_gpu_nodegroup(synth_l4, worker_pod):
    taints = synth_l4.only("ClusterStack", "AWS::EKS::Nodegroup", AmiType="AL2023_x86_64_NVIDIA")["Taints"]
    assert [t["Key"] for t in taints] == [t["key"] for t in worker_pod["tolerations"]]
    assert worker_pod["tolerations"][0]["operator"] == "Exists"


def test_no_hugepages_are_asked_for_and_shared_memory_is_left_to_kuberay(worker_group, worker_pod):
    container = worker_pod["containers"][0]
    assert not [r for r in container["resources"]["limits"] if r.startswith("hugepages")]
    assert "/dev/shm" not in [m["mountPath"] for m in container["volumeMounts"]]
    assert "plasma-directory" not in worker_group["rayStartParams"]


def test_what_was_compiled_and_downloaded_outlives_the_process_that_made_it(worker_pod):
    (cache,) = [v["name"] for v in worker_pod["volumes"] if v["name"] != "ray-logs"]
    assert {"name": cache, "emptyDir": {}} in worker_pod["volumes"]
    (path,) = [m["mountPath"] for m in worker_pod["containers"][0]["volumeMounts"] if m["name"] == cache]
    assert not path.startswith("/tmp/ray")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "HF_HOME"):
        assert variables(worker_pod)[name].startswith(f"{path}/")


# NCCL over EFA

def test_nccl_takes_efa_or_stops(worker_pod):
    env = variables(worker_pod)
    assert (env["FI_PROVIDER"], env["NCCL_NET_PLUGIN"], env["NCCL_NET"]) == ("efa", "ofi", "Libfabric")


def test_nccl_and_gloo_do_not_try_the_link_local_interface_of_pod_identity(worker_pod):
    assert variables(worker_pod)["NCCL_SOCKET_IFNAME"] == "eth0"
    assert variables(worker_pod)["GLOO_SOCKET_IFNAME"] == "eth0"


def test_nccl_leaves_the_evidence_in_one_file_a_process(worker_pod):
    env = variables(worker_pod)
    assert env["NCCL_DEBUG"] == "INFO"
    assert {"INIT", "NET"} <= set(env["NCCL_DEBUG_SUBSYS"].split(","))
    assert {"%h", "%p"} <= set(env["NCCL_DEBUG_FILE"].removesuffix(".log").split("."))


def test_gpus_are_left_to_the_device_plugin(worker_pod):
    assert not [name for name in variables(worker_pod) if name.startswith(("NVIDIA_", "CUDA_"))]


@pytest.mark.parametrize(("family", "set_there"), [("g5", True), ("g6", True), ("p5", False), ("p4d", False)])
def test_copies_through_shared_memory_use_the_copy_engines_where_gpus_have_no_direct_path(family, set_there):
    assert ("NCCL_SHM_USE_CUDA_MEMCPY" in efa_environment(family)) is set_there


# Both

def test_head_workers_and_submitter_run_the_same_image(ray_pods):
    assert len({pod["containers"][0]["image"] for pod in ray_pods.values()}) == 1
    assert {pod["containers"][0]["imagePullPolicy"] for pod in ray_pods.values()} == {"IfNotPresent"}


def test_the_image_carries_the_ray_version_that_is_declared(ray_cluster, head_pod):
    assert ray_cluster["spec"]["rayVersion"] == "2.58.0"
    assert head_pod["containers"][0]["image"].endswith("ray:train-ml-cuda-v1.1")


def test_a_changed_image_restarts_the_standing_cluster(ray_cluster):
    assert ray_cluster["spec"]["upgradeStrategy"] == {"type": "Recreate"}


def test_head_and_workers_run_under_the_account_with_aws_permissions(synth_l4, head_pod, worker_pod):
    account = only(synth_l4.manifests, "ServiceAccount")
    association = synth_l4.only("TrainingStack", "AWS::EKS::PodIdentityAssociation")
    assert head_pod["serviceAccountName"] == worker_pod["serviceAccountName"] == association["ServiceAccount"]
    assert account["metadata"] == {"name": association["ServiceAccount"], "namespace": association["Namespace"]}


def test_no_pod_holds_a_token_for_the_kubernetes_api(synth_l4, ray_pods):
    assert only(synth_l4.manifests, "ServiceAccount")["automountServiceAccountToken"] is False
    assert all(pod["automountServiceAccountToken"] is False for pod in ray_pods.values())


def test_ray_sends_no_usage_statistics(head_pod, worker_pod):
    assert variables(head_pod)["RAY_USAGE_STATS_ENABLED"] == variables(worker_pod)["RAY_USAGE_STATS_ENABLED"] == "0"


def test_aws_libraries_find_the_region_without_the_metadata_service(head_pod, worker_pod):
    assert variables(head_pod)["AWS_REGION"] == variables(worker_pod)["AWS_REGION"] == "us-east-2"


def test_pods_meet_the_baseline_that_their_namespace_enforces(synth_l4, ray_pods):
    namespace = only(synth_l4.manifests, "Namespace", "ray")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    for pod in ray_pods.values():
        context = pod["containers"][0]["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert not [v for v in pod["volumes"] if "hostPath" in v]
        assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_every_mount_has_its_volume(ray_pods, ray_cluster):
    mounts = {name: [*pod["containers"][0]["volumeMounts"],
                     *(ray_cluster["spec"]["autoscalerOptions"]["volumeMounts"] if name == "head" else [])]
              for name, pod in ray_pods.items()}
    for name, pod in ray_pods.items():
        assert {m["name"] for m in mounts[name]} == {v["name"] for v in pod["volumes"]}


def test_a_worker_pod_that_must_go_has_time_to_save(worker_pod):
    # Ray drains for as long as its own variable says; the kubelet's SIGKILL comes last.
    drain = int(variables(worker_pod)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert 90 <= drain <= worker_pod["terminationGracePeriodSeconds"] - 10


def test_a_hugging_face_token_reaches_the_workers_by_reference_only():
    pods = RayPods(image="i", ray_version="2.58.0", service_account="a", region="r")
    workers = WorkerGroup(nodes=1, gpus=1, efa=1, cpu=1, memory_gib=1, environment={}, start_seconds=1,
                          idle_seconds=1)
    for secret, wanted in ((None, []), ("hf-token", [{"secretKeyRef": {
            "name": "hf-token", "key": "token", "optional": True}}])):
        spec = ray_cluster_spec(pods, replace(workers, hf_token_secret=secret))
        head, worker = (group["template"]["spec"]["containers"][0]["env"]
                        for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]))
        assert [one["valueFrom"] for one in worker if one["name"] == "HF_TOKEN"] == wanted
        assert not [one for one in head if one["name"] == "HF_TOKEN"]
