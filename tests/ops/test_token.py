"""Ray's token on a real cluster: what it answers to whom, and that no log keeps a copy."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from ray.exceptions import AuthenticationError

from ops.job_run import connect
from ops.local_cluster import Node, local_cluster
from ops.slot import own_slot

pytestmark = pytest.mark.long

JOIN = 'import os, ray; ray.init(os.environ["RAY_ADDRESS"]); print("nodes:", len(ray.nodes()))'


@pytest.fixture(scope="module")
def cluster():
    flags = {"num-cpus": "1", "num-gpus": "0", "dashboard-host": "127.0.0.1"}
    with own_slot() as slot, local_cluster(slot) as found:
        found.start(Node("head", flags, {"RAY_AUTH_MODE": "token"}), [])
        found.wait_until_ready(120, lambda: None)
        yield found


def answer(url, token=None, body=None):
    """HTTP status of a request with or without a token."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, headers=headers, data=body and json.dumps(body).encode())
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as found:
            return found.status
    except urllib.error.HTTPError as refusal:
        return refusal.code


def driver(cluster, **variables):
    """A program that joins the cluster at its GCS, as a pod of another's could."""
    address = f"{cluster.slot.address(0)}:{cluster.slot.gcs_port}"
    return subprocess.run([sys.executable, "-c", JOIN], env={**os.environ, "RAY_ADDRESS": address, **variables},
                          text=True, capture_output=True, timeout=120)


def test_the_job_api_runs_nothing_for_who_has_no_token(cluster, tmp_path):
    mark = tmp_path / "it-ran"
    jobs, job = f"{cluster.dashboard}/api/jobs/", {"entrypoint": f"touch {mark}", "submission_id": "uninvited"}
    assert (answer(jobs, body=job), answer(jobs, "guessed", job)) == (401, 403)
    assert (answer(jobs), answer(f"{cluster.dashboard}/nodes?view=summary")) == (401, 401)
    with pytest.raises(AuthenticationError, match="Authentication failed"):
        connect(cluster.dashboard, "guessed").submit_job(entrypoint=f"touch {mark}")
    assert connect(cluster.dashboard, cluster.token).list_jobs() == []
    assert not mark.exists()


def test_health_is_told_without_a_token_as_the_kubelet_asks(cluster):
    assert answer(f"{cluster.dashboard}/api/gcs_healthz") == 200


def test_the_gcs_takes_a_driver_with_the_token_only(cluster):
    assert "nodes: 1" in driver(cluster, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=cluster.token).stdout
    for variables in ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed"}, {"RAY_AUTH_MODE": "disabled"}):
        refused = driver(cluster, **variables)
        assert refused.returncode != 0
        assert "nodes:" not in refused.stdout


def test_a_job_with_the_token_runs_and_no_log_keeps_it(cluster):
    client = connect(cluster.dashboard, cluster.token)
    job = client.submit_job(entrypoint=f"{sys.executable} -c '{JOIN}'", runtime_env={"env_vars": {"A": "1"}})
    deadline = time.monotonic() + 120
    while not client.get_job_status(job).is_terminal() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert "nodes: 1" in client.get_job_logs(job)
    assert cluster.token not in str(client.get_job_info(job))
    keeping = [path for path in cluster.folder.rglob("*") if path.is_file()
               and cluster.token.encode() in path.read_bytes()]
    assert keeping == []
