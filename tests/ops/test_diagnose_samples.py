"""Every fault of CASES that leaves a trace in logs, events or states is recognised in a sample of it."""

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops.diagnose.evidence import Document
from ops.diagnose.judge import diagnose
from ops.diagnose.sources import read

FOLDER = Path(__file__).parent / "evidence"
CASES = os.environ.get("CASES", "")

# Of each sample: the first finding's kind, or the verdict where that is not a fault.
EXPECTED = {
    "bf16-adamw": "trainer/bf16-updates",
    "cdk-cr-hang": "stack/custom-resource-silent",
    "cdk-delete-order": "teardown/held",
    "cdk-egress-ignored": "stack/egress-ignored",
    "cdk-helm-atomic": "stack/helm-name-in-use",
    "cdk-helm-timeout": "stack/helm-timeout",
    "checkpoint-local-path": "ray/storage-path",
    "dev-shm": "pod/shared-memory",
    "efa-4126-after-oom": "pod/oom-killed",
    "efa-4126-after-peer-death": "wire/efa_peer_lost",
    "efa-sg-egress": "wire/efa-security-group",
    "gpu-quota": "capacity/quota",
    "head-oom": "pod/head-oom",
    "hf-429": "data/hub-rate-limit",
    "hugepages-pending": "schedule/huge-pages",
    "image-pull-slow": "healthy",
    "insufficient-capacity": "capacity/insufficient",
    "logits-oom-152k": "trainer/cuda-oom",
    "lt-multinic-index": "stack/network-card-index",
    "lt-sg-not-on-nic": "stack/nodes-did-not-join",
    "memlock": "wire/memlock_limit",
    "nccl-logs-not-in-stdout": "unknown",
    "nccl-net-plugin-name": "wire/plugin_name_wrong",
    "num-gpus-mismatch": "ray/no-gpu",
    "nvidia-plugin-desired-0": "schedule/plugin-label",
    "nvidia-vs-efa-toleration": "schedule/plugin-toleration",
    "nvml-hook-on-cpu-head": "pod/nvml-without-gpu",
    "odcr-outside-placement-group": "capacity/reservation-outside-group",
    "ofi-libibverbs": "wire/no_eligible_provider",
    "placement-group-az": "capacity/placement-group",
    "provider-tcp-under-libfabric": "wire/provider_tcp",
    "ray-train-over-socket": "wire/plugin_not_found",
    "rayjob-forever-initializing": "unknown",
    "rayjob-retry-new-cluster": "unknown",
    "rayjob-submitter-3x": "ray/submitter-no-head",
    "report-uneven": "ray/report-uneven",
    "scale-from-zero-asg-tags": "schedule/node-template",
    "selected-efa-then-failed": "wire/plugin_init_failed",
    "socket-ifname-pod-identity": "wire/pod_identity_nic",
    "tied-embeddings-fsdp2": "trainer/tied-weights",
    "wait-gcs-init-oom": "pod/init-oom",
    "worker-death-30min-hang": "pod/oom-killed",
}
# A cost, a default or a version: nothing is logged when it happens. `eagleray check`, plan and preflight see them.
NO_TRACE = {"rayjob-ttl-cost", "g6-intranode-slow", "ray-dashboard-open", "eks-version-tomorrow"}
NOISE = ["INFO errors=0 retries=0", "no errors found", "2026-11-12 08:00:00,000 INFO heartbeat ok",
         "w9:1:2 [0] NCCL INFO NET/Plugin: Could not find: libnccl-profiler.so", "", "  ", "failed=0 skipped=0",
         "\x1b[32mall good\x1b[0m", "w9:1:2 [0] NCCL INFO NET/IB : No device found."]


def rows(name):
    return (FOLDER / f"{name}.txt").read_text().splitlines()


def judged(lines):
    found = diagnose([Document("evidence.txt", lines)])
    return found.findings[0].kind if found.verdict == "fault" else found.verdict


@pytest.mark.parametrize("name", EXPECTED)
def test_a_sample_is_recognised(name):
    assert judged(rows(name)) == EXPECTED[name]


@pytest.mark.skipif(not CASES, reason="CASES names no list of faults")
def test_every_known_fault_has_a_sample_or_leaves_no_trace():
    known = {json.loads(line)["id"] for line in Path(CASES).read_text().splitlines()}
    assert known - EXPECTED.keys() == NO_TRACE


def test_every_sample_is_in_the_table():
    assert {path.stem for path in FOLDER.glob("*.txt")} == EXPECTED.keys()


FREE_TEXT = [name for name in EXPECTED if not any(row.startswith(("{", "  ", "apiVersion")) for row in rows(name))]


@pytest.mark.parametrize("name", FREE_TEXT)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10_000), noise=st.lists(st.sampled_from(NOISE), max_size=6))
def test_harmless_lines_between_change_no_verdict(name, seed, noise):
    lines, choice = rows(name), random.Random(seed)
    for line in noise:
        lines.insert(choice.randint(0, len(lines)), line)
    found = judged(lines)
    assert found == EXPECTED[name]


@pytest.mark.parametrize("name", ["efa-sg-egress", "efa-4126-after-oom", "nvidia-vs-efa-toleration", "hf-429"])
def test_names_of_nodes_and_pods_change_no_verdict(name):
    renamed = [row.replace("ip-172-31-4-1", "gpu-node-7").replace("demo-gpu", "x").replace("Qwen", "acme")
               .replace("ip-9", "h").replace("device-plugin", "dp") for row in rows(name)]
    assert judged(renamed) == EXPECTED[name]


@pytest.mark.parametrize("lines", [
    ["step 100 loss 2.41 grad_norm 0.9 error=0 no errors", "step 110 loss 2.40 grad_norm 0.9"],
    ["step 100 loss 2.41", "step 101 loss nan", "step 102 loss 2.40", "step 103 loss 2.39", "step 104 loss 2.38"],
    ["botocore SlowDown: Please reduce your request rate, retrying", "step 5 loss 2.41", "step 6 loss 2.40"],
    ["90s   Warning  FailedScheduling  pod/w-0  0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
     "80s   Normal   TriggeredScaleUp  pod/w-0  pod triggered scale-up: [{eks-gpu 0->2 (max: 2)}]"],
])
def test_what_only_sounds_alarming_is_healthy(lines):
    assert judged(lines) == "healthy"


@pytest.mark.parametrize(("line", "kind", "said"), [
    ("eagleray-1a failed: ended after 1.9 hours: those of ray.run_hours, or all that ray.max_dollars pays for",
     "ray/deadline-of-its-own", "ended itself after 1.9 hours"),
    ("seed-7-2b refused: its turn did not come within 2400 s: eagleray-1a has the GPUs; wait longer (eagleray run "
     "--queue HOURS), or end that job first", "ray/no-turn", "which eagleray-1a has"),
])
def test_how_a_job_ends_that_has_no_time_or_no_turn(line, kind, said):
    (found,) = diagnose([Document("driver.log", ["step 100 loss 2.41", line])]).findings
    assert found.kind == kind
    assert said in found.cause


@pytest.mark.parametrize("lines", [
    ["hello"],
    ["RuntimeError: something odd happened"],
    ["[rank2]: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited or there was a network error"],
    ["ip-10-0-0-2.ec2.internal      NotReady   <none>   3h    v1.36.1-eks"],
])
def test_what_does_not_decide_is_unknown_and_says_what_to_collect(lines):
    found = diagnose([Document("evidence.txt", lines)])
    assert found.verdict == "unknown"
    assert found.findings[0].cause.startswith("unknown")
    assert "ollect" in found.findings[0].fix


def test_the_first_failure_is_told_and_not_the_loudest():
    timeouts = [f"[rank{rank}]:[E1112 17:30:12.1 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600031 milliseconds"
                for rank in range(7)]
    death = "[Thu Nov 12 17:20:03 2026] Memory cgroup out of memory: Killed process 4411 (ray::RayTrainWo)"
    found = diagnose([Document("ranks.log", timeouts), Document("dmesg.txt", [death])])
    assert found.findings[0].kind == "pod/oom-killed"
    assert "symptom/nccl-timeout" in found.findings[0].consequences
    assert found.findings[0].evidence[0].source == "dmesg.txt"


def test_an_archive_is_read_in_place_and_one_that_unfolds_is_refused(tmp_path):
    import zipfile

    from ops.errors import NothingToDoError

    with zipfile.ZipFile(tmp_path / "bundle.zip", "w") as archive:
        archive.writestr("../../escape.txt", "\n".join(rows("hf-429")))
    documents = read([str(tmp_path / "bundle.zip")])
    assert diagnose(documents).findings[0].kind == "data/hub-rate-limit"
    assert not (tmp_path.parent.parent / "escape.txt").exists()
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.txt", "0" * (64 << 20))
    with pytest.raises(NothingToDoError, match=r"bomb\.zip"):
        read([str(tmp_path / "bomb.zip")])


@pytest.mark.parametrize("lines", [
    ["{"] * 5000, ["[" * 50_000], ["Name:"] * 50, ["status:", *(f"{' ' * i}a:" for i in range(1, 200))],
    ["| CREATE_FAILED | AWS:: |"], ["\x00\ufffd" * 50]])
def test_hostile_text_is_unknown_and_no_traceback(lines):
    assert judged(lines) in ("unknown", "stack/resource-failed")


def test_a_large_log_keeps_its_telling_lines_with_their_numbers(tmp_path):
    log = tmp_path / "rank0.log"
    with log.open("w") as stream:
        for _ in range(100_000):
            stream.write("2026-11-12 08:00:00 INFO everything goes on as it did before, nothing to see here\n")
        stream.write("[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.32 GiB\n")
    documents = read([str(log)])
    found = diagnose(documents).findings[0]
    assert (found.kind, found.evidence[0].number) == ("trainer/cuda-oom", 100_001)
    assert len(documents[0]) < 60_000
