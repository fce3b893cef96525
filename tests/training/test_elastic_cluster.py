"""A job that may go on with fewer nodes, on a Ray cluster of this machine whose nodes go and come."""

import json
import signal

import pytest
import survivors

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of the job when nothing happens, to the rounding of sums in another order."""
    losses = survivors.losses_undisturbed(survivors.job(tmp_path_factory.mktemp("undisturbed")))
    return [(step, pytest.approx(loss, rel=1e-4)) for step, loss in losses]


def job(folder, **training):
    found = survivors.job(folder, **training)
    found["placement"]["min_nodes"] = 1
    return found


def world_sizes(training):
    """Ranks of each start, in order."""
    return [start["world_size"] for start in json.loads((training.run / "run.json").read_text())["startup"]]


def test_a_node_lost_for_good_leaves_a_run_with_fewer_ranks_and_the_same_losses(tmp_path, undisturbed):
    with survivors.cluster_of(2) as cluster:
        training = survivors.Training(cluster, tmp_path / "job", job(tmp_path / "runs")).start()
        training.wait_for_step(12)
        survivors.kill_node(cluster, "worker-2")
        assert training.wait() == 0
    assert training.losses() == undisturbed
    assert world_sizes(training) == [2, 1]
    assert "nodes 1 of 2: micro_batch 4 x accumulation 16 a rank, so a step keeps its 4,096 tokens" in training.log
    summary = training.summary()
    assert (summary["world_size"], summary["nodes"], summary["restarts"]) == (1, 1, 1)
    assert summary["transport"]["reasons"][0]["code"] == "single_node"
    (earlier,) = summary["transport"]["earlier"]
    assert (earlier["verdict"], earlier["world_size"]) == ("tcp", 2)


def test_a_run_takes_a_node_in_again_and_repeats_no_step(tmp_path):
    with survivors.cluster_of(2) as cluster:
        training = survivors.Training(cluster, tmp_path / "job", job(tmp_path / "runs", steps=5000)).start()
        training.wait_for_step(7)
        survivors.kill_node(cluster, "worker-2")
        training.wait_for("fewer ranks", lambda: "nodes 1 of 2: " in training.log)
        cluster.add(survivors.worker(3))
        training.wait_for("leave", lambda: "there is room for more nodes: saved and left after" in training.log)
        training.wait_for("growth", lambda: training.log.count("start-up ") == 3)
        training.wait_for_step(training.steps() + 3)
        training.kill_driver()
    left = int(training.log.split("saved and left after step ")[1].split(";")[0])
    assert f"resumed after step {left}" in training.log
    assert world_sizes(training) == [2, 1, 2]
    steps = [step for step, _ in training.losses()]
    assert steps == list(range(1, len(steps) + 1))


def test_a_node_with_notice_leaves_the_others_training_without_it(tmp_path, undisturbed):
    """SIGTERM to a pod's `ray start`, and nothing comes in its place."""
    with survivors.cluster_of(2, drain_seconds=15) as cluster:
        job_with_notice = job(tmp_path / "runs", max_failures=0, checkpoint={"every_steps": 0, "keep": 3})
        training = survivors.Training(cluster, tmp_path / "job", job_with_notice).start()
        training.wait_for_step(8)
        survivors.kill_node(cluster, "worker-1", signal.SIGTERM)
        assert training.wait() == 0
    assert "a node is about to go: saved and left after step" in training.log
    assert training.losses() == undisturbed
    assert world_sizes(training) == [2, 1]


def test_a_run_without_its_fewest_nodes_ends_with_the_reason(tmp_path):
    with survivors.cluster_of(2) as cluster:
        training = survivors.Training(cluster, tmp_path / "job", job(tmp_path / "runs"), start_timeout=20).start()
        training.wait_for_step(7)
        survivors.kill_node(cluster, "worker-1")
        survivors.kill_node(cluster, "worker-2")
        assert training.wait() == 1
    assert training.summary()["reason"] == "1 of 2 nodes (gpu.min_nodes, gpu.nodes) were not there within 20 s"


def test_a_run_whose_fewest_nodes_never_come_ends_with_the_reason(tmp_path):
    found = job(tmp_path / "runs")
    found["placement"] |= {"nodes": 3, "min_nodes": 2}
    found["training"]["accumulation"] = 12
    with survivors.cluster_of(1) as cluster:
        training = survivors.Training(cluster, tmp_path / "job", found, start_timeout=10).start()
        assert training.wait() == 1
    assert "1 of 3 nodes are there, 2 are enough" in training.log
    assert training.summary()["reason"] == "2 of 3 nodes (gpu.min_nodes, gpu.nodes) were not there within 10 s"
