"""`eagleray run`: a further job on the standing cluster, over HTTP."""

import json
from functools import cache

import pytest

from k8s import bundle
from ops.context import Context
from ops.errors import NothingToDoError
from ops.kube import KubeError, connect
from ops.run_command import Wanted, run
from ops.submitted_job import submitted_job
from tests.ops.fake_kubernetes import RUNNING, SUCCEEDED
from tests.ops.standing import Standing

_PACKAGE_FILES = cache(bundle.package_files)  # reads the whole package, which takes a second


@pytest.fixture
def app(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    standing = Standing(tmp_path, server)
    standing.set_job(**SUCCEEDED)
    monkeypatch.setattr(bundle, "package_files", _PACKAGE_FILES)
    return standing


def submit(*overrides, **wanted):
    return run(Wanted(Context(), overrides, **wanted), lambda line: None)


def test_a_job_with_its_own_settings_and_the_code_as_it_lies_here_is_created(app, tmp_path):
    name = submit("training.steps=50,training.seed=7", "ray.run_hours=3", name="seed-7")
    made = app.server.made
    assert [m["kind"] for m in made] == ["ConfigMap"] * (len(made) - 1) + ["RayJob"]
    # Read as KubeRay and `eagleray rehearse` would read it: everything that it mounts is there.
    cluster = app.server.objects["ray", "rayclusters", "eagleray"]
    job = submitted_job([*made, cluster], tmp_path)
    assert job.name == name
    assert name.startswith("seed-7-")
    assert (job.job.training.steps, job.job.training.seed) == (50, 7)
    assert job.job.placement.storage == str(app.storage)
    assert job.job.name.startswith("seed-7-")
    assert job.deadline_seconds == 3 * 3600
    assert b"def main(" in job.files[f"{job.working_dir}/training/train.py"]


def test_the_same_settings_are_the_same_job(app):
    name = submit("training.steps=50")
    count = len(app.server.made)
    assert submit("training.steps=50") == name
    assert len(app.server.made) == count


def test_a_deleted_job_takes_its_config_maps_with_it_and_no_other_jobs(app):
    deployed = set(app.server.names("configmaps"))
    first = submit("training.steps=50", name="short")
    app.server.objects["ray", "rayjobs", first]["status"] = SUCCEEDED
    of_first = set(app.server.names("configmaps")) - deployed
    second = submit("training.steps=60", name="short")
    of_second = {m["metadata"]["name"] for m in app.server.made if m["kind"] == "ConfigMap"} - of_first
    assert of_first
    assert of_second
    namespace = connect("ray")
    namespace.delete("RayJob", first)
    left = set(app.server.names("configmaps")) - deployed
    # The code is the same, and the second job's as well; the first one's settings are gone.
    assert of_second < left < of_first | of_second
    namespace.delete("RayJob", second)
    assert set(app.server.names("configmaps")) == deployed


def test_config_maps_that_the_deployment_made_stay_when_a_job_with_the_same_code_goes(app):
    name = submit("training.steps=50", name="short")
    code = [m for m in app.server.made if m["kind"] == "ConfigMap" and "settings" not in m["metadata"]["name"]]
    connect("ray").delete("RayJob", name)
    assert code
    for manifest in code:
        manifest["metadata"].pop("ownerReferences")
        app.server.add(manifest)
    again = submit("training.steps=60", name="short")
    connect("ray").delete("RayJob", again)
    assert {m["metadata"]["name"] for m in code} <= set(app.server.names("configmaps"))


def test_a_job_that_has_ended_is_not_run_twice(app):
    name = submit("training.steps=50")
    app.server.objects["ray", "rayjobs", name]["status"] = SUCCEEDED
    with pytest.raises(NothingToDoError, match=f"{name} is this very job, and has ended"):
        submit("training.steps=50")


@pytest.mark.parametrize(("override", "stack"), [
    ("gpu.nodes=4", "--all"), ("ray.image=x", "TrainingStack"), ("training.steps=5,region=us-west-2", "--all")])
def test_what_would_change_the_cluster_is_refused(app, override, stack):
    with pytest.raises(NothingToDoError, match=f"changes the cluster.*cdk deploy {stack}"):
        submit(override)
    assert app.server.made == []


@pytest.mark.parametrize(("override", "said"), [
    ("training.stepz=5", "did you mean training.steps"), ("training.steps=x", "must be a whole number"),
    ("training.steps", "must be path=value")])
def test_wrong_settings_are_named_as_written(app, override, said):
    with pytest.raises(NothingToDoError, match=said):
        submit(override)


@pytest.mark.parametrize("name", ["Upper", "9lives", "x" * 40, "a_b", ""])
def test_a_name_that_kubernetes_would_refuse(app, name):
    if not name:
        assert submit("training.steps=2", name=name).startswith("eagleray-")
        return
    with pytest.raises(NothingToDoError, match="--name"):
        submit(name=name)


def test_another_job_is_not_disturbed_and_a_queue_waits_for_it(app):
    app.set_job(**RUNNING)
    with pytest.raises(NothingToDoError, match=f"{app.name} has the GPUs.*--queue"):
        submit("training.steps=50")
    assert app.server.made == []
    submit("training.steps=50", queue_hours=12)
    spec = app.server.made[-1]["spec"]
    # The driver runs at once, and waits for its turn; what comes then has as long as without a queue.
    start = 40 * 60 + 12 * 3600
    assert f"EAGLERAY_TURN_TIMEOUT_S: '{start}'" in spec["runtimeEnvYAML"]
    assert f"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S: '{40 * 60}'" in spec["runtimeEnvYAML"]
    assert f"EAGLERAY_TIME_LIMIT_S: '{24 * 3600 - 180}'" in spec["runtimeEnvYAML"]
    assert spec["preRunningDeadlineSeconds"] == start
    for deadline in (spec["activeDeadlineSeconds"], spec["submitterPodTemplate"]["spec"]["activeDeadlineSeconds"]):
        assert deadline == (24 + 12) * 3600


def test_a_job_has_a_ceiling_of_its_own_which_a_queue_does_not_raise(app):
    app.set_job(**RUNNING)
    submit("training.steps=50", "ray.max_dollars=20", queue_hours=12)
    made = app.server.made[-1]
    seconds = Context("l4", "ray.max_dollars=20").settings().run_limit.seconds
    assert f"EAGLERAY_TIME_LIMIT_S: '{seconds - 180}'" in made["spec"]["runtimeEnvYAML"]
    assert made["spec"]["activeDeadlineSeconds"] == seconds + 12 * 3600
    assert "ray.max_dollars 20" in made["metadata"]["annotations"]["eagleray-ends-by"]
    with pytest.raises(NothingToDoError, match=r"ray.max_dollars 1 does not pay for the start.*use \d"):
        submit("ray.max_dollars=1", queue_hours=12)


def test_settings_of_other_machines_are_refused(app):
    with pytest.raises(NothingToDoError, match="deployed for 2 nodes of 4 GPUs, and these settings have 3 of 4"):
        run(Wanted(Context(overrides="gpu.nodes=3")), lambda line: None)


def test_no_cluster_of_that_name(app):
    del app.server.objects["ray", "rayclusters", "eagleray"]
    with pytest.raises(NothingToDoError, match="no RayCluster eagleray"):
        submit()


def test_a_cluster_whose_jobs_are_all_gone_names_no_bucket(app):
    for key in [k for k in app.server.objects if k[1] == "rayjobs"]:
        del app.server.objects[key]
    with pytest.raises(NothingToDoError, match="cdk deploy TrainingStack first"):
        submit()


def test_a_user_who_may_not(app):
    app.server.refuse = lambda method, path: 403 if method == "POST" else None
    with pytest.raises(KubeError, match="may not do that"):
        submit("training.steps=50")


def test_the_settings_of_a_run_are_plain_to_read_on_the_cluster(app):
    submit("training.steps=50", name="short")
    settings = next(m for m in app.server.made if m["metadata"]["name"].startswith("short-settings-"))
    assert json.loads(settings["data"]["train.json"])["training"]["steps"] == 50
