"""The numbers of a run on Ray's metrics port: what is told, and what a scraper reads."""

import re
import socket
import time
import urllib.request
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import ranks
import survivors

from benchmarks.local_job import QUICK
from ops.local_cluster import Node, local_cluster
from ops.slot import own_slot
from training import live_metrics, metrics
from training.config import TrainJob
from training.metric_names import GAUGES, exposed
from training.storage import RunFolder

RECORD = {"step": 7, "loss": 2.5, "grad_norm": 1.25, "learning_rate": 1e-3, "tokens_per_second": 37000.0,
          "step_seconds": 3.5, "data_seconds": 0.25, "mfu": 0.38, "memory_gib": 1.5, "time": 1.7e9}


@dataclass
class Wire:
    carries_efa: bool | None


class Port:
    """In place of Ray's gauges: every value that was set, by name."""

    def __init__(self):
        self.told = {}

    def gauge(self, name, description, tag_keys):
        assert description == GAUGES[name]
        assert tag_keys == ("run",)

        def add(value, tags):
            assert tags == {"run": "tiny"}
            self.told.setdefault(name, []).append(value)
        return SimpleNamespace(set=add)

    @property
    def last(self):
        return {name: values[-1] for name, values in self.told.items()}


@pytest.fixture
def port(monkeypatch):
    found = Port()
    monkeypatch.setattr(live_metrics, "Gauge", found.gauge)
    monkeypatch.setattr(live_metrics, "_EVERY_SECONDS", 0.01)
    return found


def live(efa, device="cuda", **start):
    job = ranks.job("out")
    job["placement"].update(device=device, nodes=2)
    wire = Wire(efa)
    start = {"resumed_at": 0, "starts_before": 0, **start}
    return live_metrics.LiveMetrics(TrainJob.model_validate(job), wire, **start), wire


def test_every_metric_is_told_in_base_units(port):
    told, _ = live(efa=True, starts_before=2)
    with told:
        told.note({**RECORD, "checkpoint_seconds": 12.0})
    ages = {name: port.last.pop(name) for name in list(port.last) if name.endswith("_age_seconds")}
    assert all(0 <= port.last[name] < 60 for name in ages)
    assert port.last == {**{name: port.last[name] for name in ages},
                         "eagleray_step": 7, "eagleray_loss": 2.5, "eagleray_gradient_norm": 1.25,
                         "eagleray_tokens_per_second": 37000.0, "eagleray_mfu_ratio": 0.38,
                         "eagleray_step_seconds": 3.5, "eagleray_data_wait_seconds": 0.25,
                         "eagleray_gpu_memory_bytes": 1.5 * 2**30, "eagleray_skipped_steps": 0,
                         "eagleray_restarts": 2, "eagleray_checkpoint_seconds": 12.0, "eagleray_transport_efa": 1.0}
    assert port.told.keys() == GAUGES.keys()


def test_a_value_is_told_again_and_again_for_ray_forgets_it(port):
    told, _ = live(efa=True, resumed_at=40)
    with told:
        deadline = time.monotonic() + 5
        while len(port.told.get("eagleray_step", [])) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert set(port.told["eagleray_step"]) == {40}
    before = len(port.told["eagleray_step"])
    time.sleep(0.05)
    assert len(port.told["eagleray_step"]) == before, "told after its run"


def test_what_is_not_known_is_not_told_and_never_zero(port):
    told, wire = live(efa=None, device="cpu")
    with told:
        told.note({**RECORD, "mfu": None})
    missing = {"eagleray_transport_efa", "eagleray_mfu_ratio", "eagleray_gpu_memory_bytes",
               "eagleray_checkpoint_seconds", "eagleray_checkpoint_age_seconds"}
    assert GAUGES.keys() - port.last.keys() == missing
    wire.carries_efa = False  # the next look
    assert told.values()["eagleray_transport_efa"] == 0.0


def test_a_skipped_step_is_counted_and_is_no_progress(port):
    told, _ = live(efa=True)
    told.note(RECORD)
    time.sleep(0.05)
    told.note({**RECORD, "step": 8, "loss": None, "grad_norm": None, "skipped": True, "reason": "loss is nan"})
    found = told.values()
    assert (found["eagleray_step"], found["eagleray_skipped_steps"], found["eagleray_loss"]) == (8, 1, 2.5)
    assert found["eagleray_step_age_seconds"] >= 0.05
    told.note({**RECORD, "step": 9})
    assert told.values()["eagleray_step_age_seconds"] < found["eagleray_step_age_seconds"]


def test_the_log_hands_on_each_record_with_what_was_noted_of_checkpoints(tmp_path, port):
    told, _ = live(efa=True)
    log = metrics.MetricsLog(RunFolder(str(tmp_path), "tiny"), 0, 9, live=told)
    log.note(checkpoint_seconds=3.0)
    log.add(RECORD)
    found = told.values()
    assert (found["eagleray_loss"], found["eagleray_checkpoint_seconds"]) == (2.5, 3.0)
    assert found["eagleray_checkpoint_age_seconds"] < 60


# A real cluster

def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def scraped(port):
    """Samples by name, each with its labels and value, as Prometheus would read the port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in re.findall(r"^(ray_eagleray_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
        found[name] = (dict(re.findall(r'(\w+)="([^"]*)"', labels)), float(value))
    types = dict(re.findall(r"^# TYPE (ray_eagleray_\w+) (\w+)$", text, re.MULTILINE))
    assert {types[name] for name in found} <= {"gauge"}
    return found


@pytest.fixture
def cluster():
    """Two nodes for a rank each, with a metrics port that is known, as KubeRay gives one to its pods."""
    with own_slot() as slot, local_cluster(slot) as found:
        workers = [survivors.worker(number) for number in (1, 2)]
        named = [replace(node, flags={**node.flags, "metrics-export-port": str(free_port())}) for node in workers]
        found.start(Node("head", {"num-cpus": "0", "num-gpus": "0"}, QUICK), named)
        found.wait_until_ready(120, lambda: None)
        yield found, [node.flags["metrics-export-port"] for node in named]


@pytest.mark.long
def test_a_scraper_reads_the_run_from_rays_port_without_a_token_and_nothing_once_it_is_over(cluster, tmp_path):
    ray, ports = cluster
    training = survivors.Training(ray, tmp_path / "job", survivors.job(tmp_path / "runs", steps=3000)).start()

    def samples():
        return {name: sample for port in ports for name, sample in scraped(port).items()}

    training.wait_for("all metrics", lambda: exposed("eagleray_checkpoint_age_seconds") in samples())
    found = samples()
    of_gpus = {"eagleray_mfu_ratio", "eagleray_gpu_memory_bytes"}
    assert found.keys() == {exposed(name) for name in GAUGES.keys() - of_gpus}
    assert {labels["run"] for labels, _ in found.values()} == {"tiny"}
    assert found[exposed("eagleray_transport_efa")][1] == 0  # gloo
    step = found[exposed("eagleray_step")][1]
    training.wait_for("a later step", lambda: samples()[exposed("eagleray_step")][1] > step)
    training.kill_driver()
    deadline = time.monotonic() + 60
    while samples():  # Ray keeps a value for 20 s
        assert time.monotonic() < deadline
        time.sleep(1)
