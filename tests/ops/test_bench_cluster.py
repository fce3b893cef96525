"""`eagleray bench` against an API server that speaks HTTP; the Kubernetes client is the real one."""

import json
import os
import signal
import sys

import boto3
import pytest
from moto import mock_aws

from ops import bench_cluster, cli
from tests.ops import bench_results, hand_made
from tests.ops.fake_kubernetes import RUNNING, SUCCEEDED

FINISHED = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}


class Deployed:
    """A deployed app on a fake cluster, whose jobs leave results in a folder."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.storage = folder / "bucket"
        self.verdicts = {"efa": "efa", "tcp": "tcp"}
        objects = hand_made.objects()
        hand_made.write(folder, objects)
        server.add(objects["RayCluster"], state="ready")
        server.add(objects["RayJob"], **FINISHED)
        settings = objects["Settings"]
        deployed = settings["data"]["train.json"].replace("s3://<checkpoint-bucket>/runs", str(self.storage))
        server.add({**settings, "metadata": {**settings["metadata"], "name": "eagleray-settings-1a2b"},
                    "data": {"train.json": deployed}})
        server.on_look = self.leave_results

    def leave_results(self, job):
        if job["status"] == SUCCEEDED:
            wire = job["metadata"]["name"].rpartition("-")[2].rstrip("0123456789")
            bench_results.leave(self.storage / job["metadata"]["name"], bench_results.SPEED[wire],
                                self.verdicts[wire])

    def bench(self, *arguments, repeats="1"):
        sys.argv = ["eagleray", "bench", "--cdk-out", str(self.folder / "cdk.out"), "--steps", "12",
                    "--warm-up", "2", "--repeats", repeats, "--out", str(self.folder / "out"), *arguments]
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0

    def record(self):
        return json.loads((self.folder / "out" / "bench.json").read_text())

    def jobs_made(self):
        return [o["metadata"]["name"] for o in self.server.made if o["kind"] == "RayJob"]


@pytest.fixture
def app(server, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(bench_cluster, "_EVERY_SECONDS", 0.01)
    return Deployed(tmp_path, server)


def test_the_wires_take_turns_and_the_ratio_is_told_with_its_spread(app, capsys):
    assert app.bench(repeats="2") == 0
    shown = capsys.readouterr().out
    assert [name.rpartition("-")[2] for name in app.jobs_made()] == ["efa1", "tcp1", "efa2", "tcp2"]
    assert "EFA / TCP: 2.00x tokens/s (any two runs: 2.00x to 2.00x)" in shown
    assert "2.06x" in shown
    assert "published" in shown
    result = app.record()["result"]
    assert result["valid"]
    assert result["ratio"] == pytest.approx(2.0)
    # the two crawling steps of the warm-up do not count
    assert [run["steps_per_second"] for run in result["runs"]] == pytest.approx([4, 2, 4, 2])
    assert "<svg" in (app.folder / "out" / "report.html").read_text()


def test_nothing_is_left_on_the_cluster_or_in_the_storage(app):
    before = set(app.server.names("rayjobs") + app.server.names("configmaps"))
    assert app.bench() == 0
    assert set(app.server.names("rayjobs") + app.server.names("configmaps")) == before
    assert os.listdir(app.storage) == []


def test_a_user_who_may_not_create_jobs_is_told_so(app, capsys):
    app.server.refuse = lambda method, path: 403 if method != "GET" else None
    assert app.bench() == 1
    assert "your user may not do that (403)" in capsys.readouterr().err


def test_a_run_over_the_wrong_wire_is_no_comparison(app, capsys):
    app.verdicts["efa"] = "tcp"
    assert app.bench() == 3
    assert "INVALID: run efa-1 went over 'tcp' where 'efa' was wanted" in capsys.readouterr().out
    assert app.record()["result"]["valid"] is False
    assert "Invalid as a comparison" in (app.folder / "out" / "report.html").read_text()


def test_a_failing_run_says_why_and_is_deleted(app, capsys):
    failed = {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed",
              "message": "the fabric is not efa"}
    app.server.statuses, app.server.log = [RUNNING, failed], "rank 3: provider tcp under Libfabric\n"
    assert app.bench() == 1
    errors = capsys.readouterr().err
    assert "AppFailed: the fabric is not efa" in errors
    assert "rank 3: provider tcp under Libfabric" in errors
    assert app.server.deleted[0] == f"rayjobs/{app.jobs_made()[0]}"
    assert "rank 3" in (app.folder / "out" / "runs" / "efa-1" / "job.log").read_text()


def interrupted(app, after_runs):
    """Run two repeats, with a Ctrl-C once the job after `after_runs` finished ones is looked at."""
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as in a terminal, also under nohup
    leave = app.server.on_look

    def interrupt(job):
        leave(job)
        if len(app.jobs_made()) == after_runs + 1 and job["status"] == RUNNING:
            os.kill(os.getpid(), signal.SIGINT)

    app.server.on_look = interrupt
    try:
        code = app.bench(repeats="2")
    finally:
        signal.signal(signal.SIGINT, heard)
        app.server.on_look = leave
    return code


def test_ctrl_c_deletes_the_running_job_and_the_same_command_goes_on(app, capsys):
    app.server.looks_to_be_gone = 2
    assert interrupted(app, after_runs=2) == 130
    shown = capsys.readouterr()
    running = app.jobs_made()[-1]
    assert f"efa-2: RayJob {running} deleted" in shown.out
    assert "2 of 4 runs are kept" in shown.out
    assert not [name for name in app.server.names("rayjobs") if "bench" in name]
    assert app.record()["done"] == ["efa-1", "tcp-1"]
    assert app.bench(repeats="2") == 0
    assert "2 of 4 runs are done" in capsys.readouterr().out
    assert [name.rpartition("-")[2] for name in app.jobs_made()] == ["efa1", "tcp1", "efa2", "efa2", "tcp2"]


def test_ctrl_c_during_a_clean_up_loses_no_finished_run(app):
    heard = signal.signal(signal.SIGINT, signal.SIG_DFL)

    def interrupt(method, path):
        if method == "DELETE" and "rayjobs" in path:
            os.kill(os.getpid(), signal.SIGINT)

    app.server.refuse = interrupt
    try:
        assert app.bench() == 130
    finally:
        signal.signal(signal.SIGINT, heard)
    assert app.record()["done"] == ["efa-1"]
    assert not [name for name in app.server.names("rayjobs") if "bench" in name]


def test_a_job_that_outlived_this_command_is_followed(app, capsys):
    assert interrupted(app, after_runs=0) == 130
    first = next(o for o in app.server.made if o["kind"] == "RayJob")
    for left in app.server.made[:3]:  # as after kill -9: nobody deleted them
        app.server.add({**left, "script": [RUNNING, SUCCEEDED]})
    assert app.bench(repeats="2") == 0
    assert f"{first['metadata']['name']} is there already" in capsys.readouterr().out
    assert [name.rpartition("-")[2] for name in app.jobs_made()] == ["efa1", "tcp1", "efa2", "tcp2"]


def test_a_job_that_cannot_be_deleted_is_said_with_the_command_to_do_it(app, capsys):
    app.server.refuse = lambda method, path: 403 if method == "DELETE" else None
    assert app.bench() == 1
    errors = capsys.readouterr().err
    assert f"kubectl --namespace ray delete rayjob/{app.jobs_made()[0]}" in errors
    assert "may still run" in errors


def test_a_hiccup_of_the_api_server_ends_nothing(app):
    looks = []

    def refuse(method, path):
        if method == "GET" and "rayjobs/" in path:
            looks.append(path)
        return 503 if method == "GET" and 2 <= len(looks) <= 4 and "rayjobs/" in path else None

    app.server.refuse = refuse
    assert app.bench() == 0


def test_an_operator_that_does_not_look_is_said(app, capsys, monkeypatch):
    monkeypatch.setattr(bench_cluster, "_IGNORED_SECONDS", 0.05)
    app.server.statuses = [{}]
    assert app.bench() == 1
    assert "gives RayJob" in capsys.readouterr().err


def test_another_running_job_is_not_disturbed(app, capsys):
    other = hand_made.objects()["RayJob"]
    app.server.add({**other, "metadata": {**other["metadata"], "name": "somebody-elses"}}, **RUNNING)
    assert app.bench() == 2
    assert "somebody-elses is not done (Running)" in capsys.readouterr().err
    assert app.server.made == []
    assert not (app.folder / "out").exists()


def test_what_is_not_deployed_is_said(app, capsys):
    del app.server.objects["ray", "rayclusters", "eagleray"]
    assert app.bench() == 2
    assert "no RayCluster eagleray" in capsys.readouterr().err


def test_an_unknown_storage_is_asked_for(app, capsys):
    del app.server.objects["ray", "configmaps", "eagleray-settings-1a2b"]
    assert app.bench() == 2
    assert "--storage s3://BUCKET/runs" in capsys.readouterr().err
    assert app.bench("--storage", str(app.storage)) == 0


def test_a_measured_comparison_is_not_overwritten(app, capsys):
    assert app.bench() == 0
    assert app.bench() == 2
    assert "holds a finished comparison" in capsys.readouterr().err


def test_credentials_that_are_not_accepted(app, capsys):
    app.server.kubeconfig(app.folder / "kubeconfig", token="stale")
    assert app.bench() == 1
    assert "does not accept these credentials (401)" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer(app, capsys):
    app.server.close()
    assert app.bench() == 1
    errors = capsys.readouterr().err
    assert "does not answer" in errors
    assert "cluster.api_cidrs" in errors


def test_no_kubeconfig(app, capsys, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(app.folder / "none"))
    assert app.bench() == 2
    assert "aws eks update-kubeconfig" in capsys.readouterr().err


def test_results_come_from_the_bucket_and_their_checkpoints_go(app, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-2")
    leave = app.server.on_look
    with mock_aws():
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="results", CreateBucketConfiguration={"LocationConstraint": "us-east-2"})
        s3.put_object(Bucket="results", Key="runs/training/summary.json", Body=b"{}")

        def upload(job):
            leave(job)
            if job["status"] == SUCCEEDED:
                name = job["metadata"]["name"]
                for path in [p for p in (app.storage / name).iterdir() if p.is_file()]:
                    s3.put_object(Bucket="results", Key=f"runs/{name}/{path.name}", Body=path.read_bytes())
                s3.put_object(Bucket="results", Key=f"runs/{name}/checkpoints/step-00000012/x", Body=b"large")

        app.server.on_look = upload
        assert app.bench("--storage", "s3://results/runs/") == 0
        left = [o["Key"] for o in s3.list_objects_v2(Bucket="results")["Contents"]]
    assert left == ["runs/training/summary.json"]
    assert app.record()["result"]["ratio"] == pytest.approx(2.0)
