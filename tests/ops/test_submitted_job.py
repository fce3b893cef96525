"""A job is read out of the manifests as KubeRay and the kubelet would read it."""

import json

import pytest

from ops.errors import NothingToDoError
from ops.submitted_job import read_submitted_job
from tests.ops import hand_made


def read(tmp_path, found):
    return read_submitted_job(hand_made.write(tmp_path, found))


def refusal(tmp_path, found):
    with pytest.raises(NothingToDoError) as error:
        read(tmp_path, found)
    return str(error.value)


def test_a_job_with_all_that_it_refers_to(tmp_path):
    job = read(tmp_path, hand_made.objects({"training/train.py": "print(1)\n"}))
    assert job.entrypoint == "python -m training.train train.json"
    assert job.files[f"{hand_made.CODE}/training/train.py"] == b"print(1)\n"
    assert job.job.placement.world_size == 8
    assert job.job.training.steps == 200
    assert job.runtime_env["env_vars"]["NCCL_NET"] == "Libfabric"
    assert job.cluster == "eagleray"
    assert job.workers.count == 2
    assert job.workers.environment["FI_PROVIDER"] == "efa"
    assert "POD_IP" in job.workers.unresolved


def test_ray_flags_come_from_the_limits_where_kuberay_would_take_them(tmp_path):
    job = read(tmp_path, hand_made.objects())
    assert job.workers.ray_start == {"num-cpus": "40", "num-gpus": "4", "memory": "160Gi"}
    assert job.head.ray_start["num-cpus"] == "0"  # rayStartParams win over the limit of 3


def test_the_real_app_can_be_read(synth_l4):
    job = read_submitted_job(synth_l4.outdir)
    assert job.job.placement.world_size == 8
    assert job.workers.environment["NCCL_NET"] == "Libfabric"
    assert f"{job.working_dir}/training/train.py" in job.files


@pytest.mark.parametrize("made", ["nothing", "an empty folder"])
def test_without_synth_the_message_says_what_to_run(tmp_path, made):
    if made == "an empty folder":
        (tmp_path / "manifests").mkdir()
    with pytest.raises(NothingToDoError, match="make synth"):
        read_submitted_job(tmp_path)


def test_no_job(tmp_path):
    found = hand_made.objects()
    del found["RayJob"]
    assert "holds no RayJob" in refusal(tmp_path, found)


def test_two_jobs_are_named(tmp_path):
    found = hand_made.objects()
    found["other"] = {**found["RayJob"], "metadata": {"name": "older-job"}}
    message = refusal(tmp_path, found)
    assert found["RayJob"]["metadata"]["name"] in message
    assert "older-job" in message


def test_a_cluster_that_is_not_there(tmp_path):
    found = hand_made.objects()
    found["RayJob"]["spec"]["clusterSelector"]["ray.io/cluster"] = "elsewhere"
    message = refusal(tmp_path, found)
    assert "elsewhere" in message
    assert "RayClusters there: eagleray" in message


def test_a_config_map_that_is_not_there(tmp_path):
    found = hand_made.objects()
    del found["ConfigMap"]
    assert "code-1a2b" in refusal(tmp_path, found)


def test_a_key_that_the_config_map_lacks(tmp_path):
    found = hand_made.objects()
    del found["ConfigMap"]["data"]["training__train.py"]
    assert "lacks training__train.py" in refusal(tmp_path, found)


def test_a_working_dir_that_nothing_is_mounted_in(tmp_path):
    found = hand_made.objects()
    found["RayJob"]["spec"]["runtimeEnvYAML"] = "working_dir: /elsewhere"
    assert "/elsewhere holds no mounted file" in refusal(tmp_path, found)


def test_no_working_dir(tmp_path):
    found = hand_made.objects()
    found["RayJob"]["spec"]["runtimeEnvYAML"] = "env_vars: {}"
    assert "no working_dir" in refusal(tmp_path, found)


def test_an_entrypoint_that_names_no_settings(tmp_path):
    found = hand_made.objects()
    found["RayJob"]["spec"]["entrypoint"] = "python -m training.train other.json"
    assert "python -m training.train other.json" in refusal(tmp_path, found)


def test_settings_of_another_version(tmp_path):
    found = hand_made.objects()
    found["Settings"]["data"]["train.json"] = '{"name": "x", "training": {"stepz": 1}}'
    message = refusal(tmp_path, found)
    assert "stepz" in message
    assert "make synth" in message


def test_a_file_that_is_not_yaml(tmp_path):
    cdk_out = hand_made.write(tmp_path, hand_made.objects())
    (cdk_out / "manifests" / "00-broken.yaml").write_text("a: [1")
    with pytest.raises(NothingToDoError, match=r"00-broken\.yaml: not readable as YAML"):
        read_submitted_job(cdk_out)


def test_a_clusters_token_comes_to_its_pods_as_kuberay_hands_it_over(tmp_path):
    found = hand_made.objects()
    found["RayCluster"]["spec"]["authOptions"] = {"mode": "token"}
    job = read(tmp_path, found)
    for pod in (job.head, job.workers):
        assert pod.environment["RAY_AUTH_MODE"] == "token"
        assert json.loads(pod.unresolved["RAY_AUTH_TOKEN"]) == {
            "secretKeyRef": {"name": "eagleray", "key": "auth_token"}}


def test_a_cluster_without_tokens_gets_none(tmp_path):
    job = read(tmp_path, hand_made.objects())
    assert "RAY_AUTH_MODE" not in job.head.environment
    assert "RAY_AUTH_TOKEN" not in job.workers.unresolved
