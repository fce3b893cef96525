"""report.html: everything a person needs, nothing that runs or loads, nothing unescaped."""

import json
import re
from html.parser import HTMLParser

import pytest

from ops.errors import NothingToDoError
from ops.report import write_report
from ops.run_folder import read_run

ROWS = [{"step": n, "loss": 8.0 - n / 10, "grad_norm": 1.0, "learning_rate": 1e-3, "tokens_per_second": 5000.0,
         "step_seconds": 0.3} for n in range(1, 31)]
SUMMARY = {"status": "succeeded", "steps": 30, "first_loss": 7.9, "last_loss": 5.0, "tokens_per_second": 5000,
           "mfu": None, "world_size": 4, "nodes": 2, "restarts": 0, "config_hash": "0123456789ab",
           "transport": {"verdict": "unproven", "reasons": ["gloo moves bytes over TCP"], "ranks": [{"rank": 0}]},
           "checkpoint": "/x/checkpoints/step-00000030", "versions": {"torch": "2.13.0"}}
NASTY = "<script>alert('x')</script>&\"'"


def make_run(folder, rows=ROWS, summary=SUMMARY, rehearsal=None):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(summary))
    if rehearsal is not None:
        (folder / "rehearsal.json").write_text(json.dumps(rehearsal))
    return folder


def page(folder):
    write_report(folder, folder / "report.html")
    return (folder / "report.html").read_text()


class Balance(HTMLParser):
    """Fails at a closing tag that closes something else."""

    VOID = {"meta", "br", "hr", "img", "link", "input", "wbr"}

    def __init__(self):
        super().__init__()
        self.open, self.tags = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def parsed(text):
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    return parser


def test_all_figures_and_curves_are_there(tmp_path):
    text = page(make_run(tmp_path / "run"))
    assert parsed(text).tags.count("svg") == 6
    for shown in ("7.900", "5.000", "5,000", "succeeded", "unproven", "gloo moves bytes over TCP", "0123456789ab",
                  "2.<wbr>13.<wbr>0", "Training loss",
                  "cross-entropy, nats per token", "tokens/s", "optimizer step"):
        assert shown in text


TRANSPORT = {
    "verdict": "tcp", "require": "any", "allowed": True, "warning": "bytes between nodes: tcp, not EFA",
    "reasons": [{"code": "no_eligible_provider", "detail": "no EFA device", "mend": "request it", "ranks": [0]}],
    "ranks": [{"rank": 0, "node": "10.0.0.1"}],
    "fabric": {"convention": "bus bandwidth", "ranks": 8, "sums": "right", "pairs": [], "failure": None,
               "expected": {"gb_s": 4.5, "what": "a node's link of 40 Gbit/s", "floor_gb_s": 1.8},
               "measured": [{"size": 2**22, "seconds": 0.002, "repeats": 5, "bus_gb_s": 3.67}]},
    "counters": {"status": "unavailable", "reason": "a: no device"},
}


def test_the_wire_is_told_with_its_warning_its_speed_and_what_the_devices_counted(tmp_path):
    text = page(make_run(tmp_path / "run", summary={**SUMMARY, "transport": TRANSPORT}))
    parsed(text)
    for shown in ("allowed by training.transport.require any", "bytes between nodes: tcp, not EFA",
                  "no_eligible_provider; no EFA device; request it", "4 MiB", "3.<wbr>67",
                  "sums right", "link of 40 Gbit/s should give 4.50 GB/s",
                  "EFA counters: unavailable (a: no device)"):
        assert shown in text
    read = {**TRANSPORT, "counters": {"status": "read", "counters": {"send_bytes": 1234}}}
    text = page(make_run(tmp_path / "read", summary={**SUMMARY, "transport": read}))
    assert "1234" in text
    assert "unavailable" not in text


def test_a_rehearsal_says_so_and_lists_what_was_replaced(tmp_path):
    replaced = [{"setting": "placement.device", "before": "cuda", "after": "cpu", "why": "no GPU"}]
    text = page(make_run(tmp_path / "run", rehearsal={"job": "eagleray-1", "replaced": replaced, "settings": {}}))
    assert "nothing was deployed" in text
    assert "placement.<wbr>device" in text
    assert "no GPU" in text


def test_a_run_elsewhere_is_not_called_a_rehearsal(tmp_path):
    assert "Rehearsal" not in page(make_run(tmp_path / "run"))


def test_nothing_is_loaded_and_nothing_runs(tmp_path):
    text = page(make_run(tmp_path / "run"))
    assert "<script" not in text
    assert not re.search(r"(src|href)=\"(?!#)", text)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_whatever_the_run_says_is_escaped(tmp_path):
    summary = {**SUMMARY, "status": NASTY, "reason": NASTY, "name": NASTY, "versions": {NASTY: NASTY}, "mfu": NASTY,
               "transport": {"verdict": NASTY, "reasons": [NASTY], "ranks": [{NASTY: NASTY}]}, "restarts": [NASTY],
               "config_hash": NASTY, "step_seconds": {"p50": NASTY}, "memory_gib": NASTY,
               "startup": [{"resumed_at": NASTY, "total": NASTY, "seconds": {NASTY: NASTY}, "compiled": NASTY}]}
    item = dict.fromkeys(("setting", "before", "after", "why"), NASTY)
    rehearsal = {"job": NASTY, "replaced": [item], "settings": {NASTY: NASTY}, "seconds": {NASTY: 1},
                 "machine": NASTY}
    text = page(make_run(tmp_path / "run", summary=summary, rehearsal=rehearsal))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    parsed(text)


def test_a_diverged_loss_is_said_and_the_rest_is_drawn(tmp_path):
    rows = [*ROWS[:20], {**ROWS[20], "loss": float("nan")}]
    text = page(make_run(tmp_path / "run", rows=rows))
    assert "1 of 21 steps have no finite loss" in text
    assert parsed(text).tags.count("svg") == 6


def test_skipped_steps_are_listed_with_their_reason_and_data(tmp_path):
    skipped = {**ROWS[20], "loss": None, "skipped": True, "reason": "loss is nan", "sequences": [160, 167]}
    text = page(make_run(tmp_path / "run", rows=[*ROWS[:20], skipped], summary={**SUMMARY, "skipped_steps": 1}))
    assert "step 21: loss is nan; sequences [160, 167] of the data" in text
    parsed(text)


def test_times_memory_and_the_phases_of_each_start_are_shown(tmp_path):
    starts = [{"resumed_at": at, "total": 30.5, "seconds": {"imports": 9.25, "first_step": 21.25},
               "compiled": {"anew": anew, "from_cache": 4 - anew}} for at, anew in ((0, 4), (20, 0))]
    summary = {**SUMMARY, "startup": starts, "step_seconds": {"p50": 0.2, "p90": 0.25, "p99": 0.5},
               "memory_gib": 12.34, "memory_reserved_gib": 13.5, "alloc_retries": 3}
    text = page(make_run(tmp_path / "run", summary=summary))
    parsed(text)
    for shown in ("0.20 / 0.25 / 0.50 s", "12.3 GiB", "13.5 GiB", "Allocation retries, rank 0</dt><dd>3<",
                  "first step", "21.<wbr>25", "2, after step 20", "<td>0 /<wbr> 4</td>"):
        assert shown in text


def test_restarts_show_in_the_steps(tmp_path):
    text = page(make_run(tmp_path / "run", rows=[*ROWS[:13], *ROWS[5:]]))
    assert "after step 13 the run went on at step 6" in text


def test_one_step_can_be_drawn(tmp_path):
    assert "<svg" in page(make_run(tmp_path / "run", rows=ROWS[:1]))


def test_a_failed_run_shows_its_reason(tmp_path):
    failed = {**SUMMARY, "status": "failed", "reason": "rank 3: out of memory"}
    assert "rank 3: out of memory" in page(make_run(tmp_path / "run", summary=failed))


@pytest.mark.parametrize(("metrics", "message"), [
    ("", "holds no steps"),
    ('{"step": 1, "loss": 1}\n{"step": 2, "lo', "line 2: not JSON"),
    ('{"loss": 1}\n', "line 1: has no step number"),
    ('{"step": 1, "loss": "high"}\n', "line 1: loss is not a number"),
    ("[1]\n", "line 1: has no step number"),
])
def test_damaged_metrics_name_the_line(tmp_path, metrics, message):
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text(metrics)
    with pytest.raises(NothingToDoError, match=rf"metrics\.jsonl.*{message}"):
        read_run(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json"])
def test_a_missing_file_is_named(tmp_path, name):
    (make_run(tmp_path / "run") / name).unlink()
    with pytest.raises(NothingToDoError, match=f"{name}: no such file"):
        read_run(tmp_path / "run")
