"""Rehearsals on a real local Ray cluster, and what is left of them afterwards."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.ops import hand_made

pytestmark = pytest.mark.slow

SLEEPER = {"training/__init__.py": "", "training/train.py": "import time\ntime.sleep(600)\n"}
FAILING = {"training/__init__.py": "",
           "training/train.py": "import sys\nprint('from', __file__)\nsys.exit('no such wand')\n"}


def start(folder: Path, *arguments: str, mark: str = "") -> subprocess.Popen[str]:
    """`eagleray rehearse` with the tests' own Python, in `folder`; its children inherit `mark`."""
    command = [sys.executable, "-c", "from ops.cli import main; main()", "rehearse", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "EAGLERAY_TEST": mark, "COLUMNS": "200"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))


def processes(mark: str, sessions: set[int]) -> set[int]:
    """Sessions of all live processes that inherited `mark`, or that belong to `sessions`."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            marked = f"EAGLERAY_TEST={mark}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if fields[0] not in "ZX" and (marked or int(fields[3]) in sessions):
            found.add(int(fields[3]))
    return found


def wait_for(line: str, running: subprocess.Popen[str]) -> None:
    assert running.stdout
    for text in running.stdout:
        if line in text:
            return
    pytest.fail(f"'{line}' never came: {running.communicate()[1]}")


def cluster_folder(mark: str) -> Path:
    """The folder of the cluster whose nodes carry `mark`, from a node's command line."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"EAGLERAY_TEST={mark}".encode() not in (folder / "environ").read_bytes():
                continue
            if found := re.search(rb"--temp-dir=(\S+?)/0\0", (folder / "cmdline").read_bytes()):
                return Path(found[1].decode())
        except OSError:
            continue
    raise AssertionError("no head of this test's cluster runs")


def test_the_synthesized_job_trains_here_and_its_loss_falls(synth_l4, tmp_path):
    running = start(tmp_path, "--cdk-out", str(synth_l4.outdir), "--steps", "40")
    shown, errors = running.communicate(timeout=500)
    assert running.returncode == 0, errors + shown
    out = tmp_path / "out" / "rehearsal"
    summary = json.loads((out / "summary.json").read_text())
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert summary["status"] == "succeeded"
    assert (summary["steps"], summary["world_size"], summary["nodes"]) == (40, 4, 2)
    transport = summary["transport"]
    assert len({rank["node"] for rank in transport["ranks"]}) == 2
    assert (transport["verdict"], transport["allowed"], transport["require"]) == ("tcp", True, "auto")
    assert [reason["code"] for reason in transport["reasons"]] == ["gloo_backend"]
    assert transport["fabric"]["sums"] == "right"
    assert transport["fabric"]["measured"]
    assert transport["counters"]["status"] in ("read", "unavailable")
    assert [row["step"] for row in rows] == list(range(1, 41))
    assert summary["last_loss"] < summary["first_loss"] - 1
    assert Path(summary["checkpoint"]).is_dir()
    assert Path(summary["checkpoint"]).parent == out / "checkpoints"
    assert "<svg" in (out / "report.html").read_text()
    assert "train.json placement.backend: nccl → gloo" in shown
    assert "step 40/40" in shown
    assert "wire: tcp, allowed here (training.transport.require auto): backend gloo moves bytes over TCP" in shown
    assert "fabric: sums right; " in shown
    assert sorted(os.listdir(out.parent)) == [".rehearsal.lock", "rehearsal"]


@pytest.mark.long
def test_a_job_that_fails_says_why_and_leaves_earlier_results_alone(tmp_path):
    hand_made.write(tmp_path, hand_made.objects(FAILING))
    earlier = tmp_path / "out" / "rehearsal"
    earlier.mkdir(parents=True)
    (earlier / "rehearsal.json").write_text("earlier")
    running = start(tmp_path)
    errors = running.communicate(timeout=300)[1]
    assert running.returncode == 1
    assert "no such wand" in errors
    # What ran is the ConfigMap's code as Ray unpacked it on the node, not this repository's.
    assert re.search(r"from \S*/working_dir_files/\S*/training/train\.py", errors)
    assert (earlier / "rehearsal.json").read_text() == "earlier"
    assert sorted(os.listdir(tmp_path / "out")) == [".rehearsal.lock", "rehearsal", "rehearsal.failed.log"]
    assert "no such wand" in (tmp_path / "out" / "rehearsal.failed.log").read_text()


@pytest.mark.parametrize("ending", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGKILL])
def test_nothing_is_left_running(tmp_path, ending):
    hand_made.write(tmp_path, hand_made.objects(SLEEPER))
    mark = uuid.uuid4().hex
    running = start(tmp_path, mark=mark)
    wait_for("submitted as", running)
    sessions, folder = processes(mark, set()), cluster_folder(mark)
    assert len(sessions) > 3  # the command, three nodes
    running.send_signal(ending)
    running.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while processes(mark, sessions) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not processes(mark, sessions)
    assert not folder.exists()
    if ending == signal.SIGINT:
        assert running.returncode == 130
        assert os.listdir(tmp_path / "out") == [".rehearsal.lock"]
