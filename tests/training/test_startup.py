"""What a start takes is measured from the process on, and a second start compiles nothing again."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from training import startup

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def graphs_of_a_fresh_process(cache):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, str(HERE / "compile_layers.py")], capture_output=True, text=True,
                           timeout=300, env=environment)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs g++")
@pytest.mark.long
def test_all_layers_share_one_compilation_and_a_restarted_process_finds_it(tmp_path):
    layers_and_norm = 2
    assert graphs_of_a_fresh_process(tmp_path / "cache") == {"anew": layers_and_norm, "from_cache": 0}
    assert graphs_of_a_fresh_process(tmp_path / "cache") == {"anew": 0, "from_cache": layers_and_norm}


def test_the_clock_began_with_the_process_and_no_compiler_is_imported_where_none_is_needed():
    code = ("import sys, training.train; from training import startup; clock = startup.Startup(); "
            "clock.ended('imports'); print(clock.seconds['imports'], 'torch._inductor.compile_fx' in sys.modules)")
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    imports, compiler = ended.stdout.split()
    passed = time.monotonic() - began
    assert passed / 2 <= float(imports) <= passed + 0.1
    assert compiler == "False"


def test_phases_follow_each_other_without_a_gap(monkeypatch):
    now = iter([100.0, 103.0, 103.5, 110.5])
    monkeypatch.setattr(startup, "process_age", lambda: 2.0)
    monkeypatch.setattr(startup.time, "monotonic", lambda: next(now))
    clock = startup.Startup()
    for phase in ("imports", "weights", "first_step"):
        clock.ended(phase)
    monkeypatch.undo()
    monkeypatch.setattr(startup, "compiled_graphs", lambda: {"anew": 0, "from_cache": 4})
    record = clock.record(resumed_at=20)
    assert record["seconds"] == {"imports": 5.0, "weights": 0.5, "first_step": 7.0}
    assert (record["resumed_at"], record["total"]) == (20, 12.5)
    assert startup.for_people(record) == (
        "start-up 12.5 s: imports 5.0, weights 0.5, first step 7.0 (0 graphs compiled, 4 taken from the cache)")
