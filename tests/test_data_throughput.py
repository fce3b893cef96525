"""The benchmark of data: its table, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import data_throughput

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_gives_rates_and_the_share_of_the_steps_that_waited():
    one = {"step_seconds": 0.5, "share": 0.00012, "most_waited_seconds": 0.002}
    table = data_throughput.table({
        "machine": "2 CPU cores", "megabytes": 16,
        "tokenising": {"documents": 500, "tokens": 4_000_000, "parts": 16, "ray_seconds": 20.0,
                       "one_process_seconds": 40.0},
        "making": {"token files": 50e6, "shuffle_seconds": 1.5}, "waiting": {"token files": one},
    })
    assert "| through Ray Data, all cores | 25 | 200,000 |" in table
    assert "| one process | 12 | 100,000 |" in table
    assert "| token files | 50.0 | 500 | 0.012 | 2.0 |" in table


def test_documents_are_whole_modules_until_there_is_enough(tmp_path):
    rows = data_throughput.write_documents(tmp_path / "rows.jsonl", 0.2)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert len(lines) == rows > 1
    assert (tmp_path / "rows.jsonl").stat().st_size > 200_000
    assert '"""' in json.loads(lines[1])["text"]


@pytest.mark.long
def test_all_of_it_runs_on_a_small_text(tmp_path):
    command = [sys.executable, "-m", "benchmarks.data_throughput", "--megabytes", "1.5", "--steps", "4",
               "--out", str(tmp_path / "found.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["tokenising"]["tokens"] > 100_000
    assert set(found["waiting"]) == {"random", "token files", "token files, documents apart"}
    assert all(0 <= one["share"] < 1 for one in found["waiting"].values())
