"""What a job survives, done for real: processes and nodes of a Ray cluster on this machine die."""

import signal

import pytest
import survivors

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of the job when nothing happens."""
    return survivors.losses_undisturbed(survivors.job(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(scope="module")
def cluster():
    with survivors.cluster_of(2) as found:
        yield found


@pytest.fixture
def training(cluster, tmp_path):
    found = survivors.Training(cluster, tmp_path / "job", survivors.job(tmp_path / "runs"))
    yield found
    if found.driver is not None and found.driver.poll() is None:
        found.kill_driver()


def test_a_killed_rank(training, undisturbed):
    training.start().wait_for_step(12)
    training.kill_rank()
    assert training.wait() == 0
    assert training.losses() == undisturbed
    assert training.summary()["restarts"] == 1


def test_a_driver_killed_and_started_anew_finds_its_checkpoint_by_itself(training, undisturbed):
    """As when the head is lost: its lease is still there, and nobody tells the rerun what to do."""
    training.start().wait_for_step(12)
    training.kill_driver()
    assert (training.run / "lease.json").exists()
    training.start()
    assert training.wait() == 0
    assert "resumed after step 10" in training.log
    assert training.losses() == undisturbed
    assert not (training.run / "lease.json").exists()


def test_a_second_run_on_the_same_folder_is_refused_and_harms_nothing(cluster, tmp_path):
    job = survivors.job(tmp_path / "runs", steps=5000)
    training = survivors.Training(cluster, tmp_path / "job", job).start()
    training.wait_for_step(3)
    second = survivors.Training(training.cluster, tmp_path / "second", training.job, start_timeout=1)
    # As of another cluster, where jobs line up elsewhere: here it would not come as far as the folder.
    assert second.start(TMPDIR=str(tmp_path)).wait() == 2
    assert "tiny refused: " in second.last_line()
    assert "is held by tiny (process " in second.last_line()
    training.wait_for_step(training.steps() + 5)
    training.kill_driver()


def test_a_job_that_starts_its_workers_again_keeps_its_turn_from_one_that_waits(cluster, tmp_path):
    first = survivors.Training(cluster, tmp_path / "first", survivors.job(tmp_path / "runs", steps=200)).start()
    first.wait_for_step(1)
    job = {**survivors.job(tmp_path / "runs", steps=3000), "name": "second"}
    second = survivors.Training(cluster, tmp_path / "second", job).start(EAGLERAY_TIME_LIMIT_S="30")
    second.wait_for("its place in line", lambda: "tiny has the GPUs; waiting behind tiny" in second.log)
    first.kill_rank()
    first.wait_for("its restart", lambda: "resumed after step" in first.log)
    assert second.steps() == 0
    assert first.wait() == 0
    assert first.summary()["restarts"] == 1
    # Its time began with its turn, and it leaves a summary when that is over.
    assert second.wait() == 1
    assert "second failed: ended after 0.0 hours" in second.log
    assert second.summary()["status"] == "failed"
    assert second.steps() > 0


def test_a_stopped_rank_is_named_and_the_run_goes_on_without_it(cluster, tmp_path, undisturbed):
    job = survivors.job(tmp_path / "runs", hang={"step_minutes": 0.3})
    training = survivors.Training(cluster, tmp_path / "job", job).start()
    training.wait_for_step(12)
    training.kill_rank(how=signal.SIGSTOP)
    assert training.wait() == 0
    (hang,) = training.summary()["hangs"]
    assert "gave no sign (stopped, or the node is gone); the others wait in step" in hang
    assert training.losses() == undisturbed


def test_nothing_is_tried_for_ever(cluster, tmp_path):
    """A rank that dies each time ends the run after training.max_failures restarts, with the reason."""
    job = survivors.job(tmp_path / "runs", max_failures=1)
    training = survivors.Training(cluster, tmp_path / "job", job).start()
    for step in (7, 12):
        training.wait_for_step(step)
        training.kill_rank()
    assert training.wait() == 1
    assert "tiny failed: rank " in training.last_line()
    assert "its process or node died" in training.last_line()
    assert training.summary()["restarts"] == 1


def test_a_node_with_notice_saves_and_leaves_and_costs_no_failure(tmp_path, undisturbed):
    """SIGTERM to a pod's `ray start`; a new node comes in its place, and no step is done twice."""
    with survivors.cluster_of(2, drain_seconds=100) as cluster:
        job = survivors.job(tmp_path / "runs", max_failures=0, checkpoint={"every_steps": 0, "keep": 3})
        training = survivors.Training(cluster, tmp_path / "job", job).start()
        training.wait_for_step(8)
        survivors.kill_node(cluster, "worker-1", signal.SIGTERM)
        training.wait_for("leave", lambda: "a node is about to go: saved and left after step" in training.log)
        cluster.add(survivors.worker(3))
        assert training.wait() == 0
    left = int(training.log.split("saved and left after step ")[1].split(";")[0])
    assert f"resumed after step {left}" in training.log
    assert training.losses() == undisturbed


def test_a_killed_node_is_replaced_and_the_run_goes_on(tmp_path, undisturbed):
    with survivors.cluster_of(2) as cluster:
        training = survivors.Training(cluster, tmp_path / "job", survivors.job(tmp_path / "runs")).start()
        training.wait_for_step(12)
        survivors.kill_node(cluster, "worker-2")
        cluster.add(survivors.worker(3))
        assert training.wait() == 0
    assert training.losses() == undisturbed
    assert training.summary()["restarts"] == 1
