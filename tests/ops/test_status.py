"""`eagleray status`: the official Kubernetes client against a server that speaks HTTP, AWS's answers by hand."""

import io
import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from rich.console import Console

from k8s.platform import device_plugins
from ops.aws import CredentialsError
from ops.cluster_parts import PLUGINS
from ops.context import Context
from ops.errors import NothingToDoError
from ops.kube import connect
from ops.status import command
from ops.status.command import Wanted, run
from ops.status.pods import pod_state
from tests.ops.fake_aws import FakeAws, RefusedError, stack
from tests.ops.fake_kubernetes import RUNNING, SUCCEEDED
from tests.ops.standing import ROWS, Standing, ago, node, pod

STACKS = [f"eagleray-{part}" for part in ("network", "cluster", "platform", "training")]
UNSCHEDULED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/3 nodes are available: 2 Insufficient nvidia.com/gpu, 2 Insufficient "
                           "vpc.amazonaws.com/efa."}]


@pytest.fixture
def app(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_EVERY_SECONDS", 0.01)
    return Standing(tmp_path, server)


def account(**answers):
    return FakeAws({"cloudformation.DescribeStacks": _standing_for_three_hours, **answers})


def _standing_for_three_hours(region, params):
    found = stack("CREATE_COMPLETE", *STACKS)(region, params)
    found["Stacks"][0]["CreationTime"] = datetime.now(UTC) - timedelta(hours=3)
    return found


def shown(job=None, width=100, aws=account, **wanted):
    output = io.StringIO()
    run(Wanted(Context(), job, **wanted), Console(file=output, width=width), aws)
    return output.getvalue()


def flat(text):
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 160])
def test_everything_that_matters_is_on_the_screen_at_any_width_and_without_colour(app, width):
    app.leave(run={"starts": 2}, transport={"verdict": "efa"})
    text = shown(width=width)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    for fact in ("eagleray-training CREATE_COMPLETE", "2 of 2 g6.12xlarge: GPUs 8 of 8, EFA 2 of 2",
                 "ip-10-0-0-11 ready GPUs 4/4 EFA 1/1", "ip-10-0-0-5 m7i.xlarge ready", "eagleray-head-x1 Running",
                 f"{app.name} Running RUNNING for 50 min", "wire efa restarts 1", "context fake"):
        assert fact in flat(text)


def test_the_log_tells_the_step_where_the_bucket_is_behind(app):
    app.leave()
    assert "step 40 of 200  loss 4.1  37,123 tokens/s  MFU 38.4%" in shown()


def test_a_finished_run_is_told_from_its_storage(app):
    app.leave(summary={"status": "succeeded"}, run={"starts": 1}, transport={"verdict": "efa"})
    app.set_job(**SUCCEEDED)
    text = shown()
    assert "step 30 of 200  loss 5  37,000 tokens/s  MFU 38.2%" in text
    assert "restarts 0" in text


def test_a_failed_job_says_why(app):
    app.leave(rows=ROWS[:3], summary={"status": "failed", "reason": "rank 3: out of memory"})
    app.set_job(jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed", message="exit code 1")
    text = flat(shown())
    assert "Failed FAILED AppFailed: exit code 1" in text
    assert "rank 3: out of memory" in text


def test_dollars_are_hours_times_prices_and_said_to_be_predicted(app):
    text = flat(shown())
    found = json.loads(shown(output="json"))
    # 2 x g6.12xlarge for 2 h, 1 x m7i.xlarge, EKS and a NAT gateway for 3 h
    each = {kind: float(price) for kind, price in re.findall(r"x (\S+)(?: gateway)?, [\d.]+ h at \$([\d.]+)", text)}
    expected = 4 * each["g6.12xlarge"] + 3 * (each["m7i.xlarge"] + each["EKS"] + each["NAT"])
    assert found["dollars"]["value"] == pytest.approx(expected, rel=0.02)
    assert found["dollars"]["basis"] == "predicted"
    assert "so far" in text
    assert "predicted" in text


def test_a_job_says_when_it_is_ended_at_the_latest_and_by_which_setting(app):
    app.job["metadata"]["annotations"] = {"eagleray-ends-by": "ray.max_dollars 20 at $9.55 an hour"}
    app.set_job(**RUNNING)
    found = json.loads(shown(output="json"))["jobs"][0]
    at = datetime.fromisoformat(found["deadline"])  # 50 minutes ago it began, and has 88,800 s
    assert abs((at - datetime.now(UTC)).total_seconds() - (88800 - 3000)) < 30
    assert f"ends at {at:%Y-%m-%d %H:%M} UTC at the latest (ray.max_dollars 20 at $9.55 an hour)" in flat(shown())
    app.set_job(**SUCCEEDED)
    assert "at the latest" not in flat(shown())


def test_spot_nodes_have_no_list_price(app):
    spot = node("ip-10-0-0-11")
    spot["metadata"]["labels"]["eks.amazonaws.com/capacityType"] = "SPOT"
    app.server.add(spot)
    assert json.loads(shown(output="json"))["dollars"]["value"] is None


@pytest.mark.parametrize(("status", "said"), [
    ({"phase": "Pending", "conditions": UNSCHEDULED, "containerStatuses": []}, "Insufficient nvidia.com/gpu"),
    ({"phase": "Pending", "containerStatuses": [
        {"name": "ray", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling x"}}}]},
     "ImagePullBackOff: Back-off pulling x"),
    ({"phase": "Running", "containerStatuses": [
        {"name": "ray", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
         "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]},
     "CrashLoopBackOff: back-off 40s; before that OOMKilled, exit code 137"),
    ({"phase": "Failed", "containerStatuses": [
        {"name": "ray", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}, "OOMKilled"),
    ({"phase": "Running", "containerStatuses": [
        {"name": "ray", "ready": True, "restartCount": 2, "state": {"running": {}},
         "lastState": {"terminated": {"reason": "Error", "exitCode": 137}}}]},
     "restarted 2 x, last Error, exit code 137 (killed; often for memory)"),
    ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
     "Evicted: The node was low on resource: memory."),
    ({"phase": "Pending", "initContainerStatuses": [
        {"name": "wait-gcs-ready", "state": {"waiting": {"reason": "ErrImagePull", "message": "denied"}}}]},
     "ErrImagePull: denied"),
    ({"phase": "Running", "containerStatuses": [{"name": "ray", "ready": False, "state": {"running": {}}}]},
     "not ready yet"),
])
def test_why_a_pod_does_not_run(status, said):
    found = pod_state({"metadata": {"name": "p"}, "status": status})
    assert said in f"{found.state}: {found.why}"
    assert not found.is_well


def test_a_pending_pod_is_shown_with_the_schedulers_reason(app):
    app.server.add(pod("eagleray-gpu-worker-b", phase="Pending", conditions=UNSCHEDULED, containerStatuses=[]))
    assert "Pending: 0/3 nodes are available: 2 Insufficient nvidia.com/gpu" in flat(shown())


def test_pods_of_operator_and_plugins_are_shown_when_something_is_wrong_with_them(app):
    assert "kuberay-operator-1" not in shown()
    waiting = [{"name": "c", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no"}}}]
    app.server.add(pod("efa-device-plugin-1", "kube-system", {"app.kubernetes.io/name": "efa-device-plugin"},
                       "Pending", containerStatuses=waiting))
    assert "efa-device-plugin-1 ImagePullBackOff" in flat(shown())


def test_a_node_without_its_efa_interface_is_marked(app):
    app.server.add(node("ip-10-0-0-12", efa=0))
    text = flat(shown())
    assert "GPUs 8 of 8, EFA 1 of 2" in text
    assert "EFA 0/1 incomplete: do the device plugins run?" in text


def test_no_nodes_and_no_job_is_as_it_should_be(app):
    app.set_job(**SUCCEEDED)
    for name in ("ip-10-0-0-11", "ip-10-0-0-12"):
        del app.server.objects[None, "nodes", name]
    assert "0 of 2 g6.12xlarge: GPUs 0 of 8, EFA 0 of 2 (no job wants them)" in flat(shown())


def test_all_jobs_are_listed_and_the_one_that_trains_is_told(app):
    app.set_job("eagleray-waits", created=ago(minutes=1), jobDeploymentStatus="Running", jobStatus="PENDING")
    found = json.loads(shown(output="json"))
    assert [job["name"] for job in found["jobs"]] == ["eagleray-waits", app.name]
    assert found["job"] == app.name
    assert json.loads(shown("eagleray-waits", output="json"))["job"] == "eagleray-waits"


def test_a_job_that_never_existed_is_one_line_with_those_that_do(app):
    with pytest.raises(NothingToDoError, match=f"no RayJob nonesuch; there are {app.name}$"):
        shown("nonesuch")


def test_without_credentials_the_cluster_is_shown_and_the_stacks_are_unknown(app):
    def nobody():
        raise CredentialsError("no AWS credentials: sign in")
    text = flat(shown(aws=nobody))
    assert "stacks: no AWS credentials: sign in" in text
    assert "eagleray-head-x1 Running" in text
    refused = account(**{"cloudformation.DescribeStacks": RefusedError("ExpiredToken")})
    assert "the AWS credentials have expired" in flat(shown(aws=lambda: refused))


def test_without_a_cluster_the_stacks_are_shown(app):
    app.server.close()
    text = flat(shown())
    assert "eagleray-cluster CREATE_COMPLETE" in text
    assert "does not answer" in text
    assert "cluster.api_cidrs" in text


def test_the_wrong_context_is_said(app):
    app.server.objects.clear()
    assert "has no RayCluster eagleray in namespace ray" in flat(shown())


def test_with_neither_there_is_one_error(app, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NothingToDoError, match=r"(?s)neither AWS nor the cluster.*update-kubeconfig"):
        shown(aws=lambda: account(**{"cloudformation.DescribeStacks": RefusedError("ExpiredToken")}))


def test_a_half_deleted_stack_says_why(app):
    def answer(region, params):
        found = stack("DELETE_FAILED", "eagleray-network")(region, params)
        if isinstance(found, dict):
            found["Stacks"][0]["StackStatusReason"] = "The following resource(s) failed to delete: [Vpc]."
        return found
    text = flat(shown(aws=lambda: account(**{"cloudformation.DescribeStacks": answer})))
    assert "eagleray-network DELETE_FAILED The following resource(s) failed to delete: [Vpc]." in text
    assert "eagleray-training not there" in text


def test_a_storage_that_cannot_be_read_leaves_what_the_log_says(app, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    settings = app.server.objects["ray", "configmaps", "settings-1a2b"]["data"]
    settings["train.json"] = settings["train.json"].replace(str(app.storage), "s3://somewhere/runs")
    text = flat(shown())
    assert "step 40 of 200" in text
    assert "run.json cannot be read: no AWS credentials" in text


def follow(app, statuses, terminal=False):
    app.leave()
    app.server.objects["ray", "rayjobs", app.name]["script"] = []
    looks = iter(statuses)
    answer = app.server.answer

    def look(method, path, body):
        if path.partition("?")[0].endswith("/rayjobs"):
            app.server.objects["ray", "rayjobs", app.name]["status"] = next(looks)
        return answer(method, path, body)

    app.server.answer = look
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=terminal)
    return run(Wanted(Context(), how="follow"), console, account), output.getvalue()


def test_following_ends_with_the_job_and_tells_each_change_once(app):
    code, text = follow(app, [{}, RUNNING, RUNNING, RUNNING, SUCCEEDED])
    assert code == 0
    assert [re.split(r"  +", line)[1] for line in text.splitlines()] == ["not looked at yet", "Running RUNNING",
                                                                         "Complete SUCCEEDED"]


def test_following_a_job_that_fails_exits_with_1(app):
    code, text = follow(app, [RUNNING, {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "X"}])
    assert code == 1
    assert text.splitlines()[-1].split("  ")[2] == "X"


def test_on_a_terminal_the_screen_is_redrawn(app):
    code, text = follow(app, [RUNNING, SUCCEEDED], terminal=True)
    assert code == 0
    assert text.count("so far") == 3  # two looks, and the last one stays


def test_the_plugins_are_looked_for_by_the_labels_that_they_have():
    labels = [m["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
              for m in device_plugins("us-east-2")]
    assert set(labels) == set(PLUGINS)


def test_a_cluster_that_a_user_may_not_see_all_of_is_shown_as_far_as_it_goes(app):
    app.server.refuse = lambda method, path: 403 if "/nodes" in path else None
    found = json.loads(shown(output="json"))
    assert found["nodes"] is None
    assert found["jobs"]
    assert "403" in found["unknown"][0]["why"]
    assert connect("ray").context == "fake"
