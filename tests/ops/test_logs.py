"""`eagleray logs`: from pods over HTTP, from CloudWatch's answers by hand, from a run's storage."""

import io
import json

import pytest

from ops.context import Context
from ops.errors import NothingToDoError
from ops.logs_command import Wanted, What, run
from tests.ops.fake_aws import Answer, FakeAws, RefusedError
from tests.ops.standing import DRIVER, Standing, pod

NO_GROUP = RefusedError("ResourceNotFoundException", "The specified log group does not exist.")


@pytest.fixture
def app(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Standing(tmp_path, server)


def logs(what: What = "driver", events: Answer = NO_GROUP, **wanted):
    """The lines, and what was said about where they are from."""
    output, said = io.StringIO(), []
    run(Wanted(Context(), what, **wanted), output, said.append,
        lambda: FakeAws({"logs.FilterLogEvents": events}))
    return output.getvalue().splitlines(), " ".join(said)


def test_each_part_has_its_own_log(app):
    app.server.logs |= {"eagleray-head-x1": "head\n", "kuberay-operator-1": "operator\n"}
    assert logs("head") == (["head"], "from pod eagleray-head-x1 in ray of context fake")
    assert logs("operator")[0] == ["operator"]
    assert logs("submitter")[0] == DRIVER.splitlines()
    app.server.logs |= {"nvidia-device-plugin-1": "n\n", "efa-device-plugin-1": "e\n"}
    assert sorted(logs("plugins")[0]) == ["efa-device-plugin-1 | e", "nvidia-device-plugin-1 | n"]


def test_a_rank_is_told_from_the_others_and_from_the_driver(app):
    assert logs("rank", rank=3)[0] == ["rank three says hello"]
    assert logs("rank")[0][1] == "rank 3 | rank three says hello"
    assert logs("rank")[0][0].startswith("rank 0 | step  40/200")
    driver = logs("driver")[0]
    assert len(driver) == 5
    assert not [line for line in driver if "hello" in line]


def test_after_a_restart_a_rank_is_another_process(app):
    again = ("(TrainController pid=812) - (ip=10.0.0.12, pid=302) world_rank=1, local_rank=1, node_rank=1\n"
             "(RayTrainWorker pid=302, ip=10.0.0.12) now of rank one\n")
    app.server.logs[f"{app.name}-s7k2q"] = DRIVER + again
    assert logs("rank", rank=1)[0] == ["now of rank one"]
    assert logs("rank", rank=3)[0] == ["rank three says hello"]


def test_following_gives_each_line_once(app):
    app.server.logs["eagleray-head-x1"] = "one\ntwo\nthree"
    assert logs("head", how="follow")[0] == ["one", "two", "three"]
    assert logs("rank", rank=3, how="follow")[0] == ["rank three says hello"]


def test_tail_counts_lines_of_the_rank(app):
    app.server.logs[f"{app.name}-s7k2q"] = DRIVER + "(RayTrainWorker pid=302, ip=10.0.0.12) last\n" + "noise\n" * 9
    assert logs("rank", rank=3, tail=1)[0] == ["last"]


def test_a_rank_that_there_is_not(app):
    with pytest.raises(NothingToDoError, match="no rank 9; the job has ranks 0 to 3"):
        logs("rank", rank=9)


def test_a_job_whose_workers_have_not_started(app):
    app.server.logs[f"{app.name}-s7k2q"] = "waiting\n"
    with pytest.raises(NothingToDoError, match="names no ranks"):
        logs("rank", rank=0)


def test_a_pod_that_waits_has_no_log_and_a_reason(app):
    waiting = [{"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}]
    app.server.add(pod("eagleray-head-x1", labels={"ray.io/cluster": "eagleray", "ray.io/node-type": "head"},
                       phase="Pending", containerStatuses=waiting))
    with pytest.raises(NothingToDoError, match=r"has not started.*ImagePullBackOff: no such image"):
        logs("head")


def test_a_job_that_never_existed(app):
    with pytest.raises(NothingToDoError, match=f"no RayJob nonesuch; there are {app.name}"):
        logs(job="nonesuch")


def gone(app):
    del app.server.objects["ray", "pods", f"{app.name}-s7k2q"]


def test_when_the_pod_is_gone_cloudwatch_has_the_log(app):
    gone(app)
    asked = {}

    def events(region, params):
        asked.update(params)
        return {"events": [{"message": json.dumps({"log": line + "\n", "kubernetes": {}})}
                           for line in DRIVER.splitlines()]}
    lines, said = logs("rank", rank=3, events=events)
    assert lines == ["rank three says hello"]
    assert said == "the pod is gone; from CloudWatch"
    assert asked["logGroupName"] == "/aws/containerinsights/eagleray/application"
    assert f'"{app.name}-*"' in asked["filterPattern"]


def test_without_cloudwatch_the_runs_storage_has_its_steps_and_its_end(app):
    gone(app)
    app.leave(summary={"name": app.run, "status": "failed", "reason": "rank 3: out of memory"})
    lines, said = logs()
    assert lines[0].startswith("step 1  loss 7.9")
    assert lines[-1] == f"run {app.run} failed rank 3: out of memory"
    assert "not the log itself" in said
    app.server.close()
    assert logs(job=app.run, storage=str(app.storage))[0] == lines


def test_where_nothing_is_each_place_is_named(app):
    gone(app)
    with pytest.raises(NothingToDoError) as stop:
        logs()
    for said in ("no pod of the driver is left", "no log group", "holds no steps"):
        assert said in str(stop.value)


def test_no_cluster_and_no_credentials(app):
    app.server.close()
    with pytest.raises(NothingToDoError, match=r"(?s)does not answer.*credentials have expired"):
        logs("head", events=RefusedError("ExpiredToken"))
