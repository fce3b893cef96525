"""Several jobs on one Ray cluster: one after the other in their order, and none waits for a dead one."""

import json
import multiprocessing
import threading
import time

import pytest
import ranks

from training import train
from training.errors import JobError
from training.turn import turn

CLUSTER = "10.0.0.5:6379"


class Driver:
    """A job that has its turn, or waits for it, until it is told to end. `said`: what it told."""

    def __init__(self, name, cluster):
        self.said, self.has_it, self.may_end = [], threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._run, args=(name, cluster))
        self.thread.start()

    def _run(self, name, cluster):
        with turn(cluster, name, 60, say=self.said.append):
            self.has_it.set()
            self.may_end.wait(60)

    def end(self):
        self.may_end.set()
        self.thread.join(60)


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("training.turn._LOOK_S", 0.02)


@pytest.fixture
def driver():
    """`driver("a")`: a job that has its turn, or waits for it and has said so."""
    started = []

    def start(name, cluster=CLUSTER):
        found = Driver(name, cluster)
        started.append(found)
        while not (found.said or found.has_it.is_set()):
            time.sleep(0.005)
        return found

    yield start
    for found in started:
        found.end()


def waits(name):
    """The refusal of a job that does not get its turn, and what it said before."""
    said = []
    with pytest.raises(JobError) as refused, turn(CLUSTER, name, 0.05, say=said.append):
        pytest.fail("it had a turn")
    return str(refused.value), said


def test_jobs_have_their_turn_in_the_order_in_which_they_came(driver):
    first, second = driver("first"), driver("second")
    assert second.said == ["first has the GPUs; waiting behind first"]
    refused, said = waits("third")
    assert said == ["first has the GPUs; waiting behind first, second"]
    assert "its turn did not come within 0.05 s: first has the GPUs" in refused
    assert "--queue" in refused
    first.end()
    assert second.has_it.wait(20)
    assert waits("third")[1] == ["second has the GPUs; waiting behind second"]


def test_a_driver_that_is_killed_gives_its_turn_away():
    fork = multiprocessing.get_context("fork")
    has_it = fork.Event()
    process = fork.Process(target=_hold_for_ever, args=(has_it,))
    process.start()
    assert has_it.wait(20)
    waits("second")
    process.kill()
    process.join(20)
    with turn(CLUSTER, "second", 5):
        pass


def _hold_for_ever(has_it):
    with turn(CLUSTER, "first", 5):
        has_it.set()
        time.sleep(600)


def test_one_that_gave_up_waiting_is_not_waited_for(driver):
    driver("first")
    waits("second")
    assert waits("third")[1] == ["first has the GPUs; waiting behind first"]


def test_jobs_of_other_clusters_are_none_of_its_business(driver):
    driver("first", cluster="10.0.0.6:6379")
    with turn(CLUSTER, "second", 0.05):
        pass


def test_many_at_once_are_never_two_at_a_time():
    inside, most, done = [], [], []

    def job(number):
        with turn(CLUSTER, str(number), 20, say=lambda line: None):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)
        done.append(number)

    threads = [threading.Thread(target=job, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(done) == list(range(8))
    assert max(most) == 1


def test_a_place_where_nobody_can_line_up_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "file"))
        with pytest.raises(JobError, match="jobs line up there"), turn(CLUSTER, "first", 1):
            pass


# The driver itself

@pytest.fixture
def written(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(ranks.job(tmp_path / "runs", world=2)))
    return str(path)


def test_a_job_whose_turn_does_not_come_is_refused_and_touches_nothing(driver, written, tmp_path, monkeypatch,
                                                                       capsys):
    driver("first")
    monkeypatch.setenv("RAY_ADDRESS", CLUSTER)
    monkeypatch.setenv(train.TURN_TIMEOUT, "0.05")
    assert train.main([written]) == 2
    assert "tiny refused: its turn did not come within 0.05 s: first has the GPUs" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "tiny").exists()


def test_a_job_ends_itself_when_its_time_is_up_and_says_so_in_its_summary(written, tmp_path, monkeypatch, capsys):
    ended = threading.Event()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(train.TIME_LIMIT, "0.05")
    monkeypatch.setattr(train.os, "_exit", lambda code: ended.set())
    monkeypatch.setattr(train, "fit", lambda job, folder: str(ended.wait(20)))
    assert train.main([written]) == 1
    said = capsys.readouterr().err
    assert "tiny failed: ended after 0.0 hours" in said
    assert "ray.max_dollars" in said
    assert ended.is_set()
