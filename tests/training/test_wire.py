"""What a job says of its network before it trains, and when it refuses. Real ranks over gloo."""

import json
import os
import time

import pytest
import ranks
import wire_cases as cases

from training import wire
from training.config import Placement

pytestmark = pytest.mark.slow


def gloo_job(folder, *, nodes=2, per_node=1, link_mbps=None, require="auto", **fabric):
    job = ranks.job(folder, fabric={"seconds": 0.3, **fabric}, transport={"require": require})
    job["placement"] |= {"nodes": nodes, "workers_per_node": per_node, "link_mbps": link_mbps}
    return job


def nccl_job(folder, require="auto"):
    """A job on two EFA nodes, by its settings."""
    job = gloo_job(folder, require=require)
    job["placement"] |= {"device": "cuda", "backend": "nccl", "efa_per_node": 1}
    return job


def told(folder):
    return json.loads((folder / "tiny" / wire.FILE).read_text())


def test_gloo_on_two_nodes_is_tcp_and_allowed_and_the_sums_are_right(tmp_path):
    assert ranks.run(4, cases.over_gloo, gloo_job(tmp_path, per_node=2)) == [None] * 4
    found = told(tmp_path)
    assert (found["verdict"], found["required"], found["allowed"]) == ("tcp", "any", True)
    assert [r["code"] for r in found["reasons"]] == ["gloo_backend"]
    assert [(r["rank"], r["node"]) for r in found["ranks"]] == [
        (0, "10.0.0.0"), (1, "10.0.0.0"), (2, "10.0.0.1"), (3, "10.0.0.1")]
    checked = found["fabric"]
    assert (checked["sums"], checked["failure"], checked["expected"]) == ("right", None, None)
    assert checked["measured"][0]["size"] == 2**20
    for item in checked["measured"]:
        assert item["bus_gb_s"] == pytest.approx(item["size"] / item["seconds"] * 2 * 3 / 4 / 1e9)


def test_one_node_is_unproven_and_trains(tmp_path):
    assert ranks.run(2, cases.over_gloo, gloo_job(tmp_path, nodes=1, per_node=2)) == [None, None]
    assert (told(tmp_path)["verdict"], told(tmp_path)["allowed"]) == ("unproven", True)


def test_a_rank_whose_part_is_lost_is_named(tmp_path):
    reasons = ranks.run(4, cases.over_gloo, gloo_job(tmp_path, per_node=2), cases.rank_2_gives_something_else)
    assert len(set(reasons)) == 1
    assert reasons[0].startswith("all-reduce of 1 MiB in bfloat16 gives wrong sums on ranks 0, 1, 2, 3: "
                                 "what rank 2 gave did not arrive as it was sent; ")
    assert told(tmp_path)["fabric"]["sums"] == "wrong"


def test_a_link_below_its_floor_is_refused_with_numbers_and_the_slowest_pair(tmp_path):
    job = gloo_job(tmp_path, nodes=4, link_mbps=8_000_000, floor_fraction=0.25)
    reasons = ranks.run(4, cases.over_gloo, job, cases.ranks_1_and_2_are_slow_together)
    assert len(set(reasons)) == 1
    for part in ("all-reduce over 4 ranks reaches ",
                 "the floor is 250.00 GB/s, 25% (training.fabric.floor_fraction) of the 1000.00 GB/s that a node's "
                 "link of 8000 Gbit/s should give",
                 "slowest pair between nodes: ranks 1 (10.0.0.1) and 2 (10.0.0.2) with 0.0"):
        assert part in reasons[0]
    pairs = told(tmp_path)["fabric"]["pairs"]
    assert sorted(tuple(pair["ranks"]) for pair in pairs) == [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    assert all(pair["intact"] for pair in pairs)


@pytest.mark.parametrize("off", [{"floor_fraction": 0}, {"seconds": 0}])
def test_without_a_floor_or_a_measurement_any_speed_will_do(tmp_path, off):
    assert ranks.run(2, cases.over_gloo, gloo_job(tmp_path, link_mbps=8_000_000, **off)) == [None, None]
    assert (told(tmp_path)["fabric"] is None) == ("seconds" in off)


def test_a_first_all_reduce_that_hangs_ends_with_the_rank_that_hangs(tmp_path):
    # gloo itself would wait for 30 minutes
    reasons = ranks.run(2, cases.over_gloo, gloo_job(tmp_path, timeout_seconds=1),
                        cases.rank_1_hangs_in_its_first_all_reduce)
    assert reasons[0] == reasons[1]
    assert "the first all-reduce did not end within 1 s on ranks 0, 1, although all ranks came" in reasons[0]


def test_a_rank_that_does_not_come_is_named(tmp_path):
    text, _ = ranks.run(2, cases.without_rank_1, gloo_job(tmp_path, timeout_seconds=1))
    assert text.startswith("rank 1 did not come to the check of the network within 1 s, and 1 of 2 ranks wait")


def test_a_rank_that_cannot_connect_is_named_on_all(tmp_path):
    reasons = ranks.run(2, cases.over_gloo, gloo_job(tmp_path), cases.rank_0_cannot_connect)
    assert reasons[0] == reasons[1]
    assert reasons[0].startswith("the first all-reduce failed on rank 0: rank 0 (10.0.0.0): NCCL error in: "
                                 "NCCLUtils.cpp:94, invalid usage Last error: network not found")


@pytest.mark.parametrize("world", [1, 2, 8, 300])
def test_sums_are_exact_in_both_dtypes_for_any_number_of_ranks(world):
    assert cases.contributions(world) == [0, 0]


def test_efa_that_every_rank_proves_trains(tmp_path):
    outcomes = ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), "efa")
    assert outcomes == [(None, None)] * 2
    found = told(tmp_path)
    assert (found["verdict"], found["require"], found["required"], found["warning"]) == ("efa", "auto", "efa", None)
    assert [(r["rank"], r["provider"], r["network"]) for r in found["ranks"]] == [
        (0, "efa", "Libfabric"), (1, "efa", "Libfabric")]
    assert found["judged_after"] == "the last step"
    if not os.path.exists("/sys/class/infiniband"):
        assert found["counters"]["status"] == "unavailable"


def test_a_fallback_to_tcp_is_refused_before_the_model_with_the_cause_and_the_mend(tmp_path):
    outcomes = ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), "no_provider")
    assert outcomes[0] == outcomes[1]
    before, _ = outcomes[0]
    for part in ("training.transport.require auto (several nodes with EFA) wants EFA, and the verdict on the wire "
                 "is tcp: no_eligible_provider: ", "request vpc.amazonaws.com/efa in the pod",
                 "set training.transport.require=any"):
        assert part in before
    found = told(tmp_path)
    assert (found["verdict"], found["allowed"]) == ("tcp", False)


def test_any_trains_over_tcp_with_a_warning(tmp_path):
    outcomes = ranks.run(2, cases.over_nccl, nccl_job(tmp_path, "any"), str(tmp_path), "no_provider")
    assert outcomes == [(None, None)] * 2
    found = told(tmp_path)
    assert (found["verdict"], found["allowed"]) == ("tcp", True)
    assert found["warning"] == "bytes between nodes: tcp, not EFA (training.transport.require is any)"


def test_without_a_log_nothing_is_proven_and_efa_is_refused(tmp_path):
    (before, _), _ = ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), None)
    assert "the verdict on the wire is unproven: no_nccl_lines: " in before
    assert "NCCL_DEBUG_FILE" in before


def test_a_fallback_in_a_communicator_of_the_training_is_noticed_after_the_first_step(tmp_path):
    outcomes = ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), "efa", "later_socket")
    assert outcomes[0] == outcomes[1]
    before, after = outcomes[0]
    assert before is None
    assert after.startswith("after the first step: training.transport.require auto")
    assert "verdict on the wire is tcp: socket_network" in after
    assert told(tmp_path)["judged_after"] == "the first step"


def test_what_the_devices_counted_over_the_steps_is_told(tmp_path):
    ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), "efa", None, 5000)
    found = told(tmp_path)
    assert found["verdict"] == "efa"
    assert found["counters"]["counters"] == {"tx_bytes": 10_000}
    assert [node["node"] for node in found["counters"]["nodes"]] == ["10.0.0.0", "10.0.0.1"]


def test_devices_that_counted_nothing_contradict_the_logs(tmp_path):
    ranks.run(2, cases.over_nccl, nccl_job(tmp_path), str(tmp_path), "efa", None, 0)
    found = told(tmp_path)
    assert (found["verdict"], found["allowed"]) == ("unproven", False)
    assert found["reasons"][-1]["code"] == "counters_still"
    assert found["warning"]


def test_a_log_that_was_there_before_is_no_proof(tmp_path):
    old = tmp_path / "old.log"
    old.write_text("node-a:1:1 [0] NCCL INFO Using network Libfabric\n")
    assert wire.read_own_log(str(old), 0, time.time() - 60).processes
    assert not wire.read_own_log(str(old), 0, time.time() + 60).processes
    assert not wire.read_own_log(None, 0, 0).processes


def test_the_name_of_the_log_is_made_as_nccl_makes_it(monkeypatch):
    monkeypatch.setattr(wire.socket, "gethostname", lambda: "node-a.internal")
    assert str(wire.own_log("/tmp/nccl.%h.%p.log")) == f"/tmp/nccl.node-a.{os.getpid()}.log"
    assert str(wire.own_log("/tmp/100%%.%x")) == "/tmp/100%.%x"


@pytest.mark.parametrize(("nodes", "gpu", "link_mbps", "verdict", "gb_s", "floor"), [
    (2, "l4", 40_000, "efa", 4.5, 1.8),       # 5 GB/s line rate, of which EFA gives 0.9
    (2, "l40s", 400_000, "efa", 12.0, None),  # the GPUs' own path is slower than the link, and assumed
    (1, "l4", 40_000, "unproven", 12.0, None),
    (2, "l4", 40_000, "tcp", None, None),
    (2, "l4", 40_000, "unproven", None, None),
    (2, "unknown", 40_000, "efa", None, None),
])
def test_what_is_expected_of_the_hardware(nodes, gpu, link_mbps, verdict, gb_s, floor):
    place = Placement(nodes=nodes, workers_per_node=4, storage="runs", gpu=gpu, gpu_memory_mib=22888,
                      link_mbps=link_mbps)
    found = cases.fabric.reach(place, verdict, 0.4)
    assert (found and pytest.approx(found.gb_s)) == gb_s
    assert (found and found.floor_gb_s) == (floor and pytest.approx(floor))
