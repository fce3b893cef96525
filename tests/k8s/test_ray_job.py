"""The RayJob, field by field as KubeRay 1.7.0 would take it."""

import json
import os
import re
import subprocess

import pytest
import yaml
from lookup import only, variables

from k8s.bundle import CodeBundle
from k8s.deadlines import ENDS_BY, Deadlines
from k8s.ray_job import job_spec
from settings import load_settings


def spec_of(**changes):
    bundle = changes.pop("bundle", CodeBundle("run", {"training/train.py": "1"}))
    given = {"prefix": "run", "cluster": "run", "cluster_hash": "1", "image": "an/image:1",
             "deadlines": Deadlines(600, 3600, "ray.run_hours 1")}
    return job_spec(**{**given, **changes}, bundle=bundle)


# Name

def test_name_fits_what_kuberay_accepts_even_for_the_longest_prefix():
    longest = load_settings("l4", f"name={'a' * 23}").name
    name = spec_of(prefix=longest).name
    assert len(name) <= 47
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)


@pytest.mark.parametrize("change", [
    {"image": "an/image:2"},
    {"cluster": "other"},
    {"cluster_hash": "2"},
    {"deadlines": Deadlines(600, 7200, "ray.run_hours 2")},
    {"deadlines": Deadlines(900, 3600, "ray.run_hours 1")},
    {"bundle": CodeBundle("run", {"training/train.py": "2"})},
], ids=["image", "cluster", "pods", "run", "start", "code"])
def test_any_change_makes_another_job(change):
    assert spec_of(**change).name != spec_of().name


def test_no_change_makes_the_same_job():
    assert spec_of().name == spec_of().name


# Where and how it runs

def test_runs_on_the_standing_cluster(ray_job, ray_cluster):
    assert ray_job["spec"]["clusterSelector"] == {"ray.io/cluster": ray_cluster["metadata"]["name"]}
    assert ray_job["metadata"]["namespace"] == ray_cluster["metadata"]["namespace"]
    assert "rayClusterSpec" not in ray_job["spec"]


def test_the_submission_mode_is_one_that_kuberay_knows(ray_job):
    # Any other word is accepted, shows Running and never submits.
    assert ray_job["spec"]["submissionMode"] == "K8sJobMode"


def test_one_attempt_only(ray_job):
    assert "backoffLimit" not in ray_job["spec"]  # a selected cluster allows none
    assert ray_job["spec"]["submitterConfig"] == {"backoffLimit": 0}


def test_nothing_is_set_that_a_selected_cluster_forbids(ray_job):
    forbidden = {"suspend", "deletionStrategy", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished"}
    assert not forbidden & set(ray_job["spec"])


def test_the_driver_asks_for_no_cpu_since_the_head_has_none(ray_job):
    assert ray_job["spec"]["entrypointNumCpus"] == 0


def test_entrypoint_runs_the_trainer_on_the_bundles_job_file(ray_job, code):
    assert ray_job["spec"]["entrypoint"] == "python -m training.train train.json"
    assert {"training.train.py", "train.json"} <= set(code)


# Deadlines

def test_a_job_ends_after_its_hours(ray_job):
    assert ray_job["spec"]["activeDeadlineSeconds"] == 24 * 3600
    assert ray_job["metadata"]["annotations"] == {ENDS_BY: "ray.run_hours 24"}


def test_deadlines_come_from_the_settings(synth):
    app = synth("l4", "ray.start_minutes=11,ray.max_dollars=20")
    job = only(app.manifests, "RayJob")
    spec, seconds = job["spec"], load_settings("l4", "ray.max_dollars=20").run_limit.seconds
    assert spec["preRunningDeadlineSeconds"] == 660
    assert 3600 < spec["activeDeadlineSeconds"] == seconds < 7200
    assert spec["submitterPodTemplate"]["spec"]["activeDeadlineSeconds"] == seconds
    # What a person sees in `cdk diff`, and `eagleray status` later.
    outputs = app.templates["TrainingStack"].to_json()["Outputs"]
    assert "ray.max_dollars 20 at $9.55 an hour" in outputs["JobEnds"]["Value"]
    assert "ray.max_dollars 20" in job["metadata"]["annotations"][ENDS_BY]
    env = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert env["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] == "660"


@pytest.mark.parametrize(("run", "limit"), [(3600, 3420), (600, 540)])
def test_a_job_ends_itself_before_its_deadline_to_leave_a_summary(run, limit):
    spec = spec_of(deadlines=Deadlines(300, run, "ray.max_dollars 5", in_line=7200)).spec
    assert spec["activeDeadlineSeconds"] == run + 7200
    assert yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]["EAGLERAY_TIME_LIMIT_S"] == str(limit)


def test_workers_may_be_waited_for_as_long_as_a_start_may_take(ray_job):
    # The default of Ray Train, 60 s, is shorter than the old job of a replacement takes to go.
    env = yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert int(env["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"]) == ray_job["spec"]["preRunningDeadlineSeconds"]
    assert ray_job["spec"]["preRunningDeadlineSeconds"] >= 1800


def test_a_submitter_that_must_go_stops_the_ray_job(submitter_pod, tmp_path):
    """KubeRay fails the RayJob at its deadline, and would leave the Ray job on the GPUs."""
    stub = tmp_path / "ray"
    stub.write_text('#!/bin/bash\nprintf "%s\\n" "$@" > "$SEEN"\n')
    stub.chmod(0o755)
    hook = submitter_pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    for dashboard in ("eagleray-head-svc.ray.svc.cluster.local:8265", "http://10.0.0.1:8265"):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen"),
               "RAY_DASHBOARD_ADDRESS": dashboard, "RAY_JOB_SUBMISSION_ID": "eagleray-1-x7k2"}
        subprocess.run(hook, env=env, timeout=20, check=True)
        address = f"http://{dashboard.removeprefix('http://')}"
        assert (tmp_path / "seen").read_text().split() == [
            "job", "stop", "--no-wait", "--address", address, "eagleray-1-x7k2"]
    assert submitter_pod["terminationGracePeriodSeconds"] >= 30


# Code and environment

def test_code_travels_from_the_submitters_mount(ray_job, submitter_pod):
    env = yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])
    (mount,) = submitter_pod["containers"][0]["volumeMounts"]
    assert env["working_dir"] == mount["mountPath"]
    assert mount["readOnly"] is True
    assert not mount["mountPath"].startswith("/workspace"), "the image's own working directory"
    assert env["excludes"] == ["..*"]


def test_only_the_submitter_mounts_the_code(head_pod, worker_pod):
    assert not [v for pod in (head_pod, worker_pod) for v in pod["volumes"] if "configMap" in v]


def test_runtime_env_survives_the_shell_that_the_operator_puts_it_through(ray_job):
    text = json.dumps(yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"]))
    # As in the operator's submit command: JSON as a Go string literal, which for ASCII is one of JSON as well.
    command = f"printf %s {json.dumps(text)}"
    assert subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, timeout=20,
                          check=True).stdout == text


def test_every_variable_of_the_job_is_text(ray_job):
    env = yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert all(isinstance(value, str) for value in env.values())


def test_hardware_is_the_pods_business_and_the_run_the_jobs(ray_job, worker_pod):
    # Where both set a variable the job's wins, and could take NCCL off EFA.
    job = set(yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])["env_vars"])
    assert not job & set(variables(worker_pod))
    assert not [name for name in job if name.startswith(("NCCL_", "FI_"))]


def test_logs_come_whole_and_plain(ray_job):
    env = yaml.safe_load(ray_job["spec"]["runtimeEnvYAML"])["env_vars"]
    assert (env["RAY_DEDUP_LOGS"], env["RAY_COLOR_PREFIX"]) == ("0", "0")


# Submitter pod

def test_the_submitter_never_restarts_by_itself(submitter_pod):
    assert submitter_pod["restartPolicy"] == "Never"


def test_the_submitter_has_no_gpu_no_aws_permissions_and_kuberays_own_command(submitter_pod):
    (container,) = submitter_pod["containers"]
    assert variables(submitter_pod) == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert "serviceAccountName" not in submitter_pod
    assert "command" not in container
    assert "args" not in container
    assert set(container["resources"]["limits"]) == {"cpu", "memory"}
