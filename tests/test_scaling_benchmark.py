"""The benchmark of several GPUs: what it makes of a profile, and a rehearsal of it on gloo."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("kernels", "share"), [
    ([], None),
    ([("gemm", 0, 10)], 0),
    ([("ncclDevKernel_AllGather", 0, 10)], 1),
    ([("gemm", 0, 8), ("ncclDevKernel_AllGather", 4, 10)], 0.2),
    # two at once count once; nothing running counts for nobody
    ([("ncclA", 0, 4), ("ncclB", 2, 6), ("gemm", 5, 7), ("gemm", 9, 10)], 0.5),
    # one communication under several computations
    ([("gemm", 0, 2), ("gemm", 1, 3), ("ncclA", 0, 4), ("gemm", 3.5, 4)], 0.125),
])
def test_communication_is_exposed_where_nothing_else_runs(kernels, share):
    assert scaling.exposed_share(kernels) == share


def test_strong_rows_share_one_global_batch_and_weak_rows_grow_it():
    rows = scaling.rows(8, 16, "cuda")
    strong = [row for row in rows if row.scaling == "strong"]
    assert [(row.gpus, row.batch) for row in strong] == [(1, 16), (2, 8), (4, 4), (8, 2)]
    assert {row.batch for row in rows if row.scaling == "weak"} == {16}
    assert {row.recipe for row in rows} == set(scaling.RECIPES)
    whole = scaling.token_ids(scaling.Row("full", 1, 4, "strong", "cpu"), 7, 0)
    parts = [scaling.token_ids(scaling.Row("full", 2, 2, "strong", "cpu"), 7, rank) for rank in (0, 1)]
    assert whole.tolist() == [*parts[0].tolist(), *parts[1].tolist()]


def test_the_loss_gap_is_the_largest_of_any_step():
    results = [{"scaling": "strong", "gpus": n, "losses": losses}
               for n, losses in ((1, [4.0, 2.0]), (2, [4.0, 2.1]), (4, [4.04, 2.0]))]
    assert scaling.loss_gap(results) == pytest.approx(0.05)
    assert scaling.loss_gap(results[1:]) is None


@pytest.mark.long
def test_two_processes_rehearse_it_and_lose_nothing(tmp_path):
    script = ROOT / "benchmarks" / "scaling.py"
    command = [sys.executable, script, "--device", "cpu", "--batch", "4", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads((tmp_path / "scaling.json").read_text())
    assert not [row["error"] for row in told["rows"] if "error" in row]
    assert told["loss_gap"] < 0.005
    assert "CPU (rehearsal)" in {row["device_name"] for row in told["rows"]}
