"""Two runs and one folder: on a disk, and on a store without rename, as S3 is."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pyarrow import fs

from training import lease
from training.errors import JobError
from training.lease import HeldError, Lease
from training.storage import RunFolder

SECONDS = 0.8  # 0.2 s a beat
HOLDER = f"""
import sys, time
from training.lease import Lease
from training.storage import RunFolder
Lease.take(RunFolder(sys.argv[1], "run"), "the first", lost=print, seconds={SECONDS})
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["disk", pytest.param("store", marks=pytest.mark.long)])
def folder(request, tmp_path, monkeypatch):
    """A run's folder; as a store it cannot rename, and only whole objects appear."""
    found = RunFolder(str(tmp_path), "run")
    if request.param == "store":
        found.filesystem, found._root = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "run"
        monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.2)
        assert not found.is_local
    return found


def take(folder, holder="the second", **options):
    return Lease.take(folder, holder, lost=options.pop("lost", print), seconds=SECONDS, **options)


def on_another_machine(folder):
    """As if the lease in the folder came from elsewhere: no process of it can be looked at."""
    record = folder.read_json(lease.FILE)
    folder.write_json(lease.FILE, {**record, "machine": ["head-1", "another boot"], "id": "theirs"})


def test_the_second_run_is_refused_and_told_who_holds_the_folder(folder):
    said = []
    with take(folder, "the first"), pytest.raises(HeldError) as refused:
        take(folder, say=said.append)
    (waits,) = said
    for part in ("is held by the first (process ", "since 20"):
        assert part in str(refused.value)
        assert part in waits
    assert f"delete {folder.uri}/lease.json" in str(refused.value)


def test_a_released_folder_is_free_at_once(folder):
    with take(folder, "the first"):
        pass
    assert folder.read_json(lease.FILE) is None
    said = []
    with take(folder, say=said.append):
        assert folder.read_json(lease.FILE)["holder"] == "the second"
    assert said == []


def test_a_run_may_wait_for_the_one_before_it(folder):
    first = take(folder, "the first")
    threading.Timer(2 * SECONDS, first.release).start()
    with take(folder, wait_seconds=60):
        assert folder.read_json(lease.FILE)["holder"] == "the second"


def test_a_head_that_died_elsewhere_is_seen_by_its_beat_standing_still(folder):
    take(folder, "the first").release()
    folder.write_json(lease.FILE, {**lease._record("the first"), "machine": ["head-1", "another boot"]})
    began = time.monotonic()
    with take(folder) as held:
        assert time.monotonic() - began > SECONDS
        assert folder.read_json(lease.FILE)["id"] == held._record["id"]


def test_a_killed_holder_of_this_machine_is_not_waited_for(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE,
                             cwd=Path(__file__).parents[2])
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    folder = RunFolder(str(tmp_path), "run")
    with pytest.raises(HeldError):
        take(folder)
    first.kill()
    first.wait()
    said = []
    with take(folder, say=said.append):
        assert said == []


def test_a_run_that_lost_its_folder_ends(folder):
    reasons, ended = [], threading.Event()

    def lost(reason):
        reasons.append(reason)
        ended.set()

    with take(folder, "the first", lost=lost):
        on_another_machine(folder)
        assert ended.wait(30)
    assert "was taken over by the first, so this run ends" in reasons[0]
    assert folder.read_json(lease.FILE)["id"] == "theirs"  # and leaves it to the other


def test_deleting_the_lease_ends_its_holder(folder):
    ended = threading.Event()
    with take(folder, "the first", lost=lambda _reason: ended.set()):
        folder.remove(lease.FILE)
        assert ended.wait(30)


def test_of_many_that_take_at_once_one_has_it(folder):
    held, refused = [], []

    def run(name):
        try:
            held.append(take(folder, name))
        except HeldError:
            refused.append(name)

    threads = [threading.Thread(target=run, args=(f"run {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(held), len(refused)) == (1, 3)
    held[0].release()


def test_a_storage_that_fails_for_a_while_does_not_end_the_run(folder, monkeypatch, capsys):
    lost, write = [], folder.write_json

    def failing(*_):
        raise OSError("SlowDown")

    with take(folder, "the first", lost=lost.append):
        monkeypatch.setattr(folder, "write_json", failing)
        time.sleep(2 * SECONDS / 4)
        monkeypatch.setattr(folder, "write_json", write)
        before = folder.read_json(lease.FILE)["beat"]
        deadline = time.monotonic() + 30
        while folder.read_json(lease.FILE)["beat"] == before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert folder.read_json(lease.FILE)["beat"] > before
    assert lost == []
    assert "cannot be renewed (SlowDown); trying again" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JobError) as refused:
        take(RunFolder(str(tmp_path / "file"), "run"))
    assert str(refused.value).startswith(f"placement.storage: {tmp_path}/file/run cannot be read and written: ")


def test_a_lease_that_is_no_json_is_watched_and_then_taken(folder):
    folder.write_text(lease.FILE, "{")
    with take(folder):
        assert json.loads(folder.read_text(lease.FILE))["holder"] == "the second"
