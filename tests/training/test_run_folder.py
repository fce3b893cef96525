"""The run's folder: whole files, on a disk and on storage that cannot append."""

import json
import multiprocessing
import time

import pytest
from pyarrow import fs

from training import metrics
from training.errors import JobError
from training.storage import RunFolder, absolute, once_per_node


def record(step):
    return {"step": step, "loss": 1.5, "grad_norm": 0.5, "learning_rate": 1e-3, "tokens_per_second": 1000.0,
            "step_seconds": 0.1, "mfu": None, "memory_gib": 1.0, "time": 0.0}


@pytest.fixture(params=["disk", "remote"])
def folder(request, tmp_path):
    """A folder on a disk with a space in its path, and one in a file system that is none of this machine's."""
    if request.param == "disk":
        return RunFolder(str(tmp_path / "with space"), "run")
    remote = RunFolder(str(tmp_path), "run")
    remote.filesystem, remote._root = fs._MockFileSystem(), "bucket/run"
    return remote


def test_files_are_written_read_listed_and_removed(folder):
    assert folder.read_json("a/b.json") is None
    assert folder.folders("a") == []
    folder.write_json("a/b.json", {"x": 1})
    folder.write_json("a/b.json", {"x": 2})
    folder.write_text("a/sub/c.txt", "four")
    assert folder.read_json("a/b.json") == {"x": 2}
    assert folder.folders("a") == ["sub"]
    assert folder.sizes("a") == {"b.json": len('{\n  "x": 2\n}\n'), "sub/c.txt": 4}
    folder.remove("a")
    folder.remove("a")
    assert folder.read_json("a/b.json") is None


def test_metrics_are_there_after_a_flush_and_a_restart_drops_what_is_trained_again(folder):
    log = metrics.MetricsLog(folder, resumed_at=0, steps=9)
    for step in (1, 2, 3):
        log.add(record(step))
    seen_at_once = [r["step"] for r in metrics.read_metrics(folder)]
    assert seen_at_once == ([1, 2, 3] if folder.is_local else [])
    log.flush()
    assert [r["step"] for r in metrics.read_metrics(folder)] == [1, 2, 3]
    again = metrics.MetricsLog(folder, resumed_at=2, steps=9)
    again.add(record(3))
    again.flush()
    assert [r["step"] for r in metrics.read_metrics(folder)] == [1, 2, 3]


def test_a_line_cut_short_by_a_crash_is_left_out(folder):
    folder.write_text("metrics.jsonl", json.dumps(record(1)) + "\n" + json.dumps(record(2))[:20])
    assert [r["step"] for r in metrics.read_metrics(folder)] == [1]


def test_an_unknown_kind_of_storage_is_named():
    with pytest.raises(JobError, match=r"placement\.storage ftp://x/y cannot be opened"):
        RunFolder("ftp://x/y", "run")


def test_a_relative_folder_becomes_absolute_and_a_uri_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("out/") == str(tmp_path / "out")
    assert absolute("s3://bucket/runs/") == "s3://bucket/runs"


def test_only_the_first_process_of_a_node_does_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fork = multiprocessing.get_context("fork")
    done = fork.SimpleQueue()

    def ask():
        def make(target):
            time.sleep(0.2)
            target.write_text(str(multiprocessing.current_process().pid))

        done.put(once_per_node("thing", make).read_text())

    processes = [fork.Process(target=ask) for _ in range(4)]
    for process in processes:
        process.start()
    answers = {done.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(answers) == 1


def test_work_that_failed_is_done_anew(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fails(target):
        target.write_text("half")
        raise JobError("no")

    with pytest.raises(JobError):
        once_per_node("thing", fails)

    def succeeds(target):
        target.write_text("whole")

    assert once_per_node("thing", succeeds).read_text() == "whole"


def test_a_line_for_people():
    shown = metrics.for_people({**record(7), "mfu": 0.471, "tokens_per_second": 12345.6}, 200)
    assert shown == ("step   7/200  loss 1.5000  grad 0.50  lr 1.0e-03  12,346 tokens/s  0.10 s  "
                     "MFU 47.1 %  1.0 GiB")


def test_a_skipped_step_is_plain_to_people_and_valid_json_to_programs(folder):
    skipped = {**record(7), "loss": None, "skipped": True, "reason": "loss is nan", "sequences": [48, 55]}
    assert metrics.for_people(skipped, 200) == (
        "step   7/200  SKIPPED: loss is nan (sequences 48 to 55 of the data); the weights stay as they are")
    log = metrics.MetricsLog(folder, resumed_at=0, steps=9)
    log.add(skipped)
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.add({**record(8), "loss": float("nan")})
