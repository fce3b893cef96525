"""A whole comparison on this machine: two jobs on a real Ray cluster, gloo over two links."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ops import hand_made

STAND_IN = Path(__file__).with_name("stand_in_trainer.py").read_text()


@pytest.fixture
def links():
    """Whether this machine lets a command have networks of its own."""
    if any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "ip", "tc")):
        return False
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    made = ("ip link add name one type veth peer name two && "
            "tc qdisc add dev one root tbf rate 100mbit burst 128kb latency 400ms")
    return subprocess.run([*own, "sh", "-c", made], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.long
def test_two_jobs_run_over_two_links_and_are_compared(tmp_path, links):
    hand_made.write(tmp_path, hand_made.objects({"training/__init__.py": "", "training/train.py": STAND_IN}))
    command = [sys.executable, "-c", "from ops.cli import main; main()", "bench", "--rehearse", "--repeats", "1",
               "--steps", "8", "--warm-up", "2"]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "COLUMNS": "100"}, text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    out = tmp_path / "out" / "bench-rehearsal"
    record = json.loads((out / "bench.json").read_text())
    assert (record["kind"], record["done"], record["result"]["valid"]) == ("rehearsal", ["efa-1", "tcp-1"], True)
    assert "says nothing about EFA" in (out / "report.html").read_text()
    assert sorted(os.listdir(out / "runs" / "tcp-1")) == ["job.log", "manifests", "metrics.jsonl", "summary.json"]
    assert "gloo over slow, for TCP" in done.stdout if links else "both wires are the loopback" in done.stdout
    if links:
        assert record["result"]["ratio"] > 2  # one is limited to 100 Mbit/s, the other by the processor
        assert "efa-1: 0.0 MB over the slow link" in done.stdout
