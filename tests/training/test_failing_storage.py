"""What a whole run does when its storage fails or fills up, done for real on a Ray cluster of this machine."""

import re
from contextlib import suppress

import pytest
import survivors
from checkpoint_cases import small_disk

pytestmark = pytest.mark.long
STEPS = 100


def a_job(storage, **checkpoint):
    """A checkpoint takes two seconds of training."""
    return survivors.job(storage, steps=STEPS, checkpoint={"every_steps": 20, "keep": 2, **checkpoint})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Losses of the job when nothing happens."""
    return survivors.losses_undisturbed(a_job(tmp_path_factory.mktemp("undisturbed")))


@pytest.fixture(scope="module")
def cluster():
    with survivors.cluster_of(2) as found:
        yield found


@pytest.fixture
def begin(cluster, tmp_path):
    """Starts a job, and ends it where the test did not."""
    begun = []

    def start(job):
        begun.append(survivors.Training(cluster, tmp_path / "job", job).start())
        return begun[-1]

    yield start
    for training in begun:
        training.kill_driver()


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 4096) as path:
        yield path


def fill(disk):
    """A file that takes all the space that is left."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as stream:
        while stream.write(bytes(4096)):
            pass
    return filler


def test_a_disk_that_is_full_for_one_save_costs_one_checkpoint(begin, disk, undisturbed):
    training = begin(a_job(disk))
    training.wait_for_step(22)
    filler = fill(disk)
    training.wait_for("failed save", lambda: " was not saved: " in training.log)
    filler.unlink()
    assert training.wait() == 0
    said = (r"checkpoint of step \d+ was not saved: \S+ needs [\d,]+ bytes and [\d,]+ are free there; make room, "
            r"or lower training.checkpoint.keep; the newest one is of step \d+")
    assert re.search(said, training.log)
    assert training.losses() == undisturbed
    assert training.summary()["restarts"] == 0


def test_a_disk_that_stays_full_ends_the_run_and_its_rerun_needs_only_room(begin, disk, undisturbed):
    training = begin(a_job(disk))
    training.wait_for_step(22)
    filler = fill(disk)
    assert training.wait() == 1
    assert re.match(r"tiny failed: checkpoint of step \d+ was not saved: .* are free there", training.last_line())
    assert "resumed after step" not in training.log  # no restart was tried
    filler.unlink()
    training.start()
    assert training.wait() == 0
    assert re.search(r"resumed after step [248]0\b", training.log)
    assert training.losses() == undisturbed


def test_storage_that_fails_for_a_while_costs_no_step(begin, tmp_path, undisturbed):
    storage = survivors.Storage(tmp_path / "place")
    training = begin(a_job(storage.path))
    training.wait_for_step(22)
    storage.fail()
    training.wait_for("save that failed", lambda: "; tried again in " in training.log)
    storage.mend()
    assert training.wait() == 0
    assert training.losses() == undisturbed
    assert training.summary()["restarts"] == 0


def test_storage_that_stays_away_ends_the_run_and_its_rerun_goes_on(begin, tmp_path, undisturbed):
    storage = survivors.Storage(tmp_path / "place")
    training = begin(a_job(storage.path, retry_minutes=0.05))
    training.wait_for_step(22)
    storage.fail()
    assert training.wait() == 1
    assert re.match(r"tiny failed: checkpoint of step \d+ was not saved: .*Not a directory", training.last_line())
    storage.mend()
    training.start()
    assert training.wait() == 0
    assert re.search(r"resumed after step [248]0\b", training.log)
    assert training.losses() == undisturbed
