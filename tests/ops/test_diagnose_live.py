"""`eagleray diagnose` asks a cluster, and keeps what it told as a file without secrets."""

import json
import tarfile

import pytest

from ops.diagnose import command
from ops.diagnose.redaction import Redactor

HEAD = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "run-head-x", "namespace": "ray"},
        "spec": {"containers": [
            {"name": "ray-head", "env": [{"name": "HF_TOKEN", "value": "hf_abcdefghijklmnop"}]}]},
        "status": {"phase": "Running"}}
WORKER = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "run-gpu-worker-y", "namespace": "ray"},
          "spec": {"containers": [{"name": "ray-worker"}]}, "status": {"phase": "Running"}}
KILLED = {"phase": "Running", "containerStatuses": [
    {"name": "ray-worker", "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}


@pytest.fixture
def cluster(server, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    server.add({"kind": "RayJob", "metadata": {"name": "run", "namespace": "ray"}}, jobDeploymentStatus="Running",
             jobStatus="RUNNING")
    server.statuses = []
    server.logs = {"run-head-x": "step 10 loss 2.4\nstep 20 loss 2.3\n", "run-gpu-worker-y": "errors=0\n"}
    server.add(HEAD)
    return server


def test_a_cluster_that_trains_is_healthy(eagleray, cluster, capsys):
    cluster.add(WORKER)
    assert eagleray("diagnose", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "healthy"
    assert told["findings"][0]["cause"] == "none"


def test_a_killed_worker_is_found_and_its_bundle_judges_alike(eagleray, cluster, capsys, tmp_path):
    cluster.add({**WORKER, "status": KILLED})
    cluster.logs["run-gpu-worker-y"] = "account 123456789012 reads with Bearer abcdefghijk from 10.0.0.7\n"
    bundle = tmp_path / "support.tar.gz"
    assert eagleray("diagnose", "--bundle", bundle, "--hide-addresses") == 1
    told = capsys.readouterr()
    assert "pod/oom-killed" in told.out
    assert "1 account id" in told.err
    with tarfile.open(bundle) as archive:
        texts = [stream.read().decode() for member in archive if (stream := archive.extractfile(member))]
    for secret in ("hf_abcdefghijklmnop", "123456789012", "abcdefghijk ", "10.0.0.7"):
        assert not [text for text in texts if secret in text]
    assert eagleray("diagnose", bundle) == 1
    assert "pod/oom-killed" in capsys.readouterr().out


def test_what_may_not_be_asked_is_named_and_the_rest_is_judged(eagleray, cluster, capsys):
    cluster.add({**WORKER, "status": KILLED})
    cluster.refuse = lambda method, path: 403 if "/nodes" in path else None
    assert eagleray("diagnose") == 1
    assert "not collected: nodes.json" in capsys.readouterr().err


def test_without_a_cluster_there_is_one_clear_line(eagleray, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert eagleray("diagnose") == 2
    assert "no usable kubeconfig" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "said"), [
    (["nowhere.log"], "no such file"), (["--hide-addresses"], "--bundle"),
    (["x.log", "--bundle", "y.tar.gz"], "--bundle")])
def test_wrong_options_are_said_in_a_line(eagleray, capsys, arguments, said):
    assert eagleray("diagnose", *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text", [
    "AWS_SECRET_ACCESS_KEY=abcd1234/efgh", "password: hunter22", '{"name": "DB_PASSWORD", "value": "hunter22"}',
    "https://me:hunter22@example.org/x", "AKIAABCDEFGHIJKLMNOP"])
def test_a_secret_is_taken_out_and_counted(text):
    redactor = Redactor()
    clean = redactor.clean(text)
    assert not [secret for secret in ("hunter22", "abcd1234", "AKIAABCDEF") if secret in clean]
    assert sum(redactor.counts.values()) == 1


def test_words_without_a_secret_stay(capsys):
    text = "step 100 loss 2.4 tokens/s 18211, 600031 milliseconds, node ip-10-0-1-23"
    assert Redactor().clean(text) == text
    assert command.EXIT_CODES == {"healthy": 0, "fault": 1, "unknown": 4}
