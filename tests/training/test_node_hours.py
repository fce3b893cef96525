"""For how long a run had its nodes: over restarts, over jobs, on fewer nodes, and of jobs that vanished."""

import pytest

from training import lease
from training.node_hours import hours, job_of, note_end, with_start
from training.storage import RunFolder

HOUR = 3600.0


def test_a_restart_in_the_same_job_keeps_its_nodes():
    held = with_start([], "a", 2, 0.0, None)
    held = with_start(held, "a", 2, 1 * HOUR, 0.9 * HOUR)
    assert hours(held, 3 * HOUR) == (3.0, 6.0)


def test_hours_on_fewer_nodes_count_as_such():
    held = with_start(with_start([], "a", 2, 0.0, None), "a", 1, 2 * HOUR, 1.9 * HOUR)
    assert hours(held, 3 * HOUR) == (3.0, 5.0)


def test_the_days_between_two_jobs_of_a_run_are_not_held():
    held = [{**with_start([], "a", 2, 0.0, None)[0], "until": HOUR}]
    held = with_start(held, "b", 2, 100 * HOUR, 0.9 * HOUR)
    assert hours(held, 101 * HOUR) == (2.0, 4.0)


@pytest.mark.parametrize(("last_step", "known"), [(0.5 * HOUR, 0.5), (None, 0.0), (-9.0, 0.0), (200 * HOUR, 100.0)])
def test_a_job_that_vanished_had_its_nodes_until_the_last_step_that_is_known(last_step, known):
    held = with_start(with_start([], "a", 1, 0.0, None), "b", 1, 100 * HOUR, last_step)
    assert hours(held, 101 * HOUR) == pytest.approx((known + 1, known + 1))


def test_the_end_is_noted_by_the_job_that_holds_the_folder_alone(tmp_path):
    folder = RunFolder(str(tmp_path), "run")
    folder.write_json(lease.FILE, {"id": "a"})
    note_end(folder, lambda: HOUR)  # it never started workers
    assert folder.read_json("run.json") is None
    held = with_start([], job_of(folder), 2, 0.0, None)
    folder.write_json("run.json", {"starts": 1, "held": held})
    folder.write_json(lease.FILE, {"id": "b"})
    note_end(folder, lambda: HOUR)
    assert "until" not in folder.read_json("run.json")["held"][0]
    folder.write_json(lease.FILE, {"id": "a"})
    note_end(folder, lambda: HOUR)
    assert folder.read_json("run.json") == {"starts": 1, "held": [{**held[0], "until": HOUR}]}
    assert hours(folder.read_json("run.json")["held"], 9 * HOUR) == (1.0, 2.0)
