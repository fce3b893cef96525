"""The two jobs of a comparison differ in the wire, and in nothing else."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ops.bench_job import EFA_AND_TCP, Shape, planned_runs, run_objects
from ops.errors import NothingToDoError
from ops.submitted_job import read_objects, submitted_job
from tests.k8s.crd_schema import errors

SHAPE = Shape(steps=30, warm_up=5, repeats=2, minutes=30)
CRDS = os.environ.get("KUBERAY_CRDS", "")


@pytest.fixture(scope="module")
def app(synth_l4):
    objects = read_objects(synth_l4.outdir)
    return objects, submitted_job(objects, synth_l4.outdir)


@pytest.fixture(scope="module")
def rendered(app):
    """ConfigMap and RayJob of the first run of each wire."""
    objects, job = app
    efa, tcp = planned_runs(job, "ab12cd", EFA_AND_TCP, 1)
    return [run_objects(objects, job, run, SHAPE, "ab12cd", "s3://bucket/runs") for run in (efa, tcp)]


def flat(value, path=""):
    """Leaves by path; YAML and JSON inside of texts are opened."""
    if isinstance(value, str) and path.endswith(("runtimeEnvYAML", "train.json")):
        value = yaml.safe_load(value)
    if isinstance(value, dict):
        return {k: v for key, below in value.items() for k, v in flat(below, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for n, below in enumerate(value) for k, v in flat(below, f"{path}/{n}").items()}
    return {path: value}


def differences(first, second):
    one, two = flat(first), flat(second)
    pairs = {path: (one.get(path), two.get(path)) for path in one.keys() | two.keys()}
    return {path: (before, after) for path, (before, after) in pairs.items() if before != after}


def test_the_jobs_differ_in_the_wire_only(rendered):
    (settings_efa, *code_efa, job_efa), (settings_tcp, *code_tcp, job_tcp) = rendered
    variables = "/spec/runtimeEnvYAML/env_vars"
    assert differences(job_efa, job_tcp) == {
        "/metadata/name": ("eagleray-bench-ab12cd-efa1", "eagleray-bench-ab12cd-tcp1"),
        **{f"/spec/submitterPodTemplate/spec/volumes/0/projected/sources/{n}/configMap/name":
           (f"eagleray-bench-ab12cd-efa1-{n}", f"eagleray-bench-ab12cd-tcp1-{n}")
           for n in range(len(code_efa) + 1)},
        f"{variables}/FI_PROVIDER": ("efa", "tcp"),
        f"{variables}/NCCL_NET": ("Libfabric", "Socket"),
        f"{variables}/NCCL_NET_PLUGIN": ("ofi", "none"),
    }
    for n, (efa, tcp) in enumerate(zip(code_efa, code_tcp, strict=True), 1):
        assert differences(efa, tcp) == {
            "/metadata/name": (f"eagleray-bench-ab12cd-efa1-{n}", f"eagleray-bench-ab12cd-tcp1-{n}")}
    assert differences(settings_efa, settings_tcp) == {
        "/metadata/name": ("eagleray-bench-ab12cd-efa1-0", "eagleray-bench-ab12cd-tcp1-0"),
        "/data/train.json/name": ("eagleray-bench-ab12cd-efa1", "eagleray-bench-ab12cd-tcp1"),
        "/data/train.json/training/transport/require": ("efa", "any"),
    }


def test_a_run_trains_what_the_deployed_job_trains_only_shorter(app, rendered):
    before = app[1].job.model_dump(mode="json")
    after = json.loads(rendered[0][0]["data"]["train.json"])
    changed = differences(before, after)
    assert changed.pop("/placement/storage") == ("s3://<checkpoint-bucket>/runs", "s3://bucket/runs")
    assert changed.pop("/training/steps")[1] == SHAPE.steps
    # a comparison leaves no checkpoints on the way, proves its wire, and does not refuse a slow one
    allowed = ("/name", "/training/checkpoint/", "/training/transport/require", "/training/fabric/floor_fraction")
    assert not [path for path in changed if not path.startswith(allowed)]


def test_a_single_node_has_no_wire_to_compare(app):
    objects, job = app
    placement = job.job.placement.model_copy(update={"nodes": 1})
    job = replace(job, job=job.job.model_copy(update={"placement": placement}))
    run = planned_runs(job, "ab12cd", EFA_AND_TCP, 1)[0]
    with pytest.raises(NothingToDoError, match="on one node nothing crosses the network"):
        run_objects(objects, job, run, SHAPE, "ab12cd", "s3://bucket/runs")


def test_a_length_in_tokens_becomes_one_in_steps(app):
    objects, job = app
    training = job.job.training.model_copy(update={"steps": None, "tokens": 1_000_000})
    job = replace(job, job=job.job.model_copy(update={"training": training}))
    run = planned_runs(job, "ab12cd", EFA_AND_TCP, 1)[0]
    made = json.loads(run_objects(objects, job, run, SHAPE, "ab12cd", "s3://b/runs")[0]["data"]["train.json"])
    assert (made["training"]["steps"], made["training"]["tokens"]) == (30, None)


def test_deadlines_are_the_comparisons(rendered):
    spec = rendered[0][-1]["spec"]
    assert spec["activeDeadlineSeconds"] == spec["preRunningDeadlineSeconds"] + 30 * 60
    assert spec["submitterPodTemplate"]["spec"]["activeDeadlineSeconds"] == spec["activeDeadlineSeconds"]


def test_the_synthesized_objects_stay_as_they_are(app, rendered, synth_l4):
    assert app[0] == read_objects(synth_l4.outdir)


@pytest.mark.skipif(not CRDS, reason="KUBERAY_CRDS names no folder with KubeRay's CRDs: the RayJob is not checked")
def test_kuberays_crd_takes_the_job(rendered):
    job = rendered[1][-1]
    assert job["metadata"].pop("labels") == {"eagleray-bench": "ab12cd"}
    assert errors(Path(CRDS), job) == []


def test_the_longest_cluster_name_leaves_room_for_the_job(app):
    job = replace(app[1], cluster="e" * 23)
    assert max(len(run.name) for run in planned_runs(job, "ab12cd", EFA_AND_TCP, 999)) <= 47


def test_the_wires_take_turns(app):
    assert [run.label for run in planned_runs(app[1], "x", EFA_AND_TCP, 2)] == ["efa-1", "tcp-1", "efa-2", "tcp-2"]
