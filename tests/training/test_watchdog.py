"""A rank that hangs: who is named late, and that real ranks end themselves."""

import json
import os
import signal
import threading
import time

import pytest
import ranks
from loop_cases import hang_at

from training.sections import HangConfig
from training.storage import RunFolder
from training.watchdog import EXIT_CODE, hangs, judge, reason

NODES = ["10.0.0.7", "10.0.0.7", "10.0.0.8", "10.0.0.8"]


def report(rank, place="step", step=7, where="forward (model.py:3)", waits=True):
    return {"rank": rank, "place": place, "step": step, "where": where, "waits": waits, "seconds": 300.0}


@pytest.mark.parametrize(("reports", "verdict"), [
    ([report(0), report(1), report(2)],
     "rank 3 (node 10.0.0.8) gave no sign (stopped, or the node is gone); the others wait in step 7"),
    ([report(0), report(1)], "ranks 2, 3 (node 10.0.0.8) gave no sign (stopped, or the node is gone); "
                             "the others wait in step 7"),
    ([report(0), report(1, "data", where="read (files.py:9)", waits=False), report(2), report(3)],
     "rank 1 (node 10.0.0.7) hangs in the data of step 7 at read (files.py:9); the others wait in step 7"),
    ([report(0, "checkpoint", 6, "write (s3.py:1)"), report(1), report(2), report(3)],
     "rank 0 (node 10.0.0.7) hangs in the checkpoint of step 6 at write (s3.py:1); the others wait in step 7"),
    ([report(0), report(1), report(2, where="sleep (step.py:5)", waits=False), report(3)],
     "rank 2 (node 10.0.0.8) hangs in step 7 at sleep (step.py:5); the others wait in step 7"),
    ([report(0, waits=False), report(1), report(2), report(3, waits=False)],
     "ranks 0, 3 (nodes 10.0.0.7, 10.0.0.8) hang in step 7 at forward (model.py:3); the others wait in step 7"),
    ([report(rank) for rank in range(4)],
     "no rank is late: all 4 hang in step 7; their stacks lie under stacks/"),
    ([report(rank, "start", 0) for rank in range(3)],
     "rank 3 (node 10.0.0.8) gave no sign (stopped, or the node is gone); the others wait in the start"),
])
def test_the_late_rank_is_named(reports, verdict):
    assert judge(reports, 4, NODES) == verdict


def job(folder):
    return ranks.job(folder, world=2, steps=8, hang={"step_minutes": 0.05, "start_minutes": 2})


@pytest.mark.long
def test_a_rank_that_hangs_is_named_and_all_end_themselves_with_their_stacks(tmp_path):
    codes = ranks.exit_codes(2, hang_at, job(tmp_path), 5)
    assert codes == [EXIT_CODE, EXIT_CODE]
    folder = RunFolder(str(tmp_path), "tiny")
    assert reason(folder) == hangs(folder)[0]
    assert str(reason(folder)).startswith("rank 1 (node ")
    assert " hangs in step 5 at hanging (loop_cases.py:" in str(reason(folder))
    assert str(reason(folder)).endswith("; the others wait in step 5")
    (start,) = folder.folders("stacks")
    for rank, frame in ((0, "train_step"), (1, "hanging")):
        text = (tmp_path / "tiny" / "stacks" / start / f"rank-0000{rank}.txt").read_text()
        assert f"rank {rank} of 2 makes no progress: step of step 5" in text
        assert f" in {frame}" in text


@pytest.mark.long
def test_a_stopped_process_is_named_by_the_others(tmp_path):
    """SIGSTOP: it cannot say anything itself, though the store of torch may be in it."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def stop(rank):
        deadline = time.monotonic() + 100
        while not (pids / str(rank)).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(int((pids / str(rank)).read_text()), signal.SIGSTOP)

    stopper = threading.Thread(target=stop, args=(0,))
    stopper.start()
    codes = ranks.exit_codes(2, hang_at, job(tmp_path), 5, 0, str(pids))
    stopper.join()
    assert codes[1] == EXIT_CODE
    found = json.loads((tmp_path / "tiny" / "hang.json").read_text())
    assert found["reason"].startswith("rank 0 (node ")
    assert "gave no sign (stopped, or the node is gone); the others wait in step 5" in found["reason"]


def test_checkpoints_and_the_first_step_have_limits_of_their_own():
    limits = HangConfig()
    assert limits.step_minutes < limits.checkpoint_minutes < limits.start_minutes
