"""Over which wire: the verdict on small logs of each fault, on whole jobs, and on real logs where given."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from nccl_job import RELEASES, Job

from training.transport import Evidence, Verdict, read_logs, verdict
from training.transport_reasons import REASONS

ROOT = Path(__file__).resolve().parent.parent.parent
# verdict-reason.log or verdict-reason-variant.log
SAMPLES = sorted((Path(__file__).parent / "nccl_samples").glob("*.log"))
REAL = os.environ.get("NCCL_LOGS")


def judged(*texts: str, world_size: int | None = None) -> Verdict:
    """The verdict on logs, each text one file."""
    return verdict(read_logs([io.StringIO(text) for text in texts]), world_size)


def job_text(job: Job) -> str:
    return "\n".join(job.lines()) + "\n"


def codes(found: Verdict) -> list[str]:
    return [reason.code for reason in found.reasons]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_gets_the_verdict_and_the_reason_of_its_name(sample):
    wanted, code = sample.stem.split("-")[:2]
    found = verdict(read_logs([sample]))
    assert found.verdict == wanted
    assert code == "all_ranks" or code in codes(found)
    assert all(reason.detail and reason.mend for reason in found.reasons)


def test_every_reason_has_a_sample_and_an_entry_in_the_troubleshooting_guide():
    shown = {path.stem.split("-")[1] for path in SAMPLES}
    guide = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert not set(REASONS) - shown
    assert not [code for code in REASONS if f"`{code}`" not in guide]


@pytest.mark.skipif(not REAL, reason="NCCL_LOGS names no folder of real logs")
def test_real_logs_get_the_verdict_of_their_source():
    logs = sorted(Path(REAL or "").glob("*.log"))
    assert logs
    wrong = []
    for log in logs:
        told = json.loads(log.with_suffix(".source.json").read_text())["verdict"]
        may = {"efa": {"efa"}, "socket": {"tcp"}, "no_network": {"unproven"}, "error": {"error"},
               "socket_or_error": {"tcp", "error"}}[told.split(":")[0].split(" ")[0]]
        found = verdict(read_logs([log]))
        code = told.partition(":")[2]
        if found.verdict not in may or ("error:" in told and code.strip() in REASONS and code not in codes(found)):
            wrong.append((log.name, told, found.verdict, codes(found)))
    assert not wrong


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 1), (2, 2), (3, 4)])
def test_a_job_on_efa_is_proven_in_the_words_of_each_release(release, nodes, gpus):
    found = judged(job_text(Job(nodes, gpus, release)))
    assert (found.verdict, codes(found)) == ("efa", [])
    assert [rank.rank for rank in found.ranks] == list(range(nodes * gpus))
    assert {rank.provider for rank in found.ranks} == {"efa"}
    assert found.ranks[0].network == "Libfabric"
    assert found.ranks[0].gdr is True
    assert found.world_size == nodes * gpus
    assert found.nccl == [RELEASES[release].nccl.split("+")[0]]


@pytest.mark.parametrize("release", RELEASES)
def test_one_rank_on_sockets_makes_the_whole_run_tcp_and_is_named(release):
    found = judged(job_text(Job(release=release, on_sockets=frozenset({2}))))
    assert found.verdict == "tcp"
    assert [list(reason.ranks) for reason in found.reasons if reason.code == "socket_network"] == [[2]]


@pytest.mark.parametrize("release", RELEASES)
def test_one_node_proves_nothing(release):
    assert codes(judged(job_text(Job(nodes=1, gpus=4, release=release)))) == ["single_node"]


def test_channels_are_counted_by_transport():
    ranks = judged(job_text(Job())).ranks
    assert ranks[0].channels == {"NET/Libfabric": 2, "P2P": 1, "SHM": 1}
    assert ranks[1].channels == {"NET/Libfabric": 2}


PREFIXES = {
    "ray": lambda host, pid: f"(RayTrainWorker pid={pid}, ip=10.0.0.{host}) ",
    "ray in colour": lambda host, pid: f"\x1b[36m(RayTrainWorker pid={pid}, ip=10.0.0.{host})\x1b[0m ",
    "mpi": lambda host, pid: f"[1,{pid}]<stdout>: ",
    "kubectl": lambda host, pid: f"[pod/worker-{host}/ray-worker] ",
    "kubectl with times": lambda host, pid: f"[pod/w-{host}/ray] 2026-11-12T09:31:08.{pid:09d}Z ",
    "NCCL's own times": lambda host, pid: "[2026-11-12 09:31:08] ",
    "torchrun": lambda host, pid: f"[rank{pid}]:",
    "srun": lambda host, pid: f" {pid}: ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_what_stands_before_a_line_changes_nothing(prefix):
    job = Job()
    text = "\r\n".join(prefix(line[5], int(line.split(":")[1])) + line for line in job.lines())
    assert judged(text).ranks == judged(job_text(job)).ranks
    assert judged(text).verdict == "efa"


@pytest.mark.parametrize("prefix", ["ray", "mpi", "torchrun"])
def test_a_fault_without_nccls_header_belongs_to_who_writes_under_its_prefix(prefix):
    before = PREFIXES[prefix]
    lines = [before(line[5], int(line.split(":")[1])) + line for line in Job().lines()]
    found = judged("\n".join([*lines, before("1", 103) + "EFA internal error: (4112) Failure to post buffers"]))
    assert found.verdict == "error"
    assert [(reason.code, list(reason.ranks)) for reason in found.reasons] == [("memlock_limit", [3])]


def test_a_line_that_ray_folded_proves_nothing_for_those_it_hides():
    """Ray shows one line of a kind and how many others said it."""
    lines = [f"(RayTrainWorker pid={line.split(':')[1]}, ip=10.0.0.1) {line}" for line in Job().ranks()[0]]
    lines = [f"{line} [repeated 3x across cluster]" for line in lines]
    assert judged("\n".join(lines)).verdict == "efa"  # what rank 0 itself said
    found = judged("\n".join(lines), world_size=4)
    assert found.verdict == "unproven"
    assert codes(found) == ["ranks_missing", "lines_hidden"]
    assert list(found.reasons[0].ranks) == [1, 2, 3]


def test_a_folded_line_that_is_bad_counts():
    job = Job(on_sockets=frozenset({0, 1, 2, 3}))
    folded = f"(RayTrainWorker pid=103, ip=10.0.0.2) {job.lines()[-2]} [repeated 16x across cluster]"
    assert judged(job_text(Job()) + folded).verdict == "tcp"


def test_missing_ranks_are_named():
    ranks = Job(nodes=2, gpus=4).ranks()
    found = judged(*("\n".join(ranks[rank]) for rank in (0, 1, 3, 4, 7)))
    assert (found.verdict, codes(found)[0]) == ("unproven", "ranks_missing")
    assert list(found.reasons[0].ranks) == [2, 5, 6]
    assert "ranks 2, 5-6 of 8" in found.reasons[0].detail


def test_the_log_of_one_rank_is_judged_for_that_rank_and_says_so():
    text = "\n".join(Job().ranks()[2])
    assert (judged(text).verdict, codes(judged(text))) == ("efa", ["one_rank_log"])
    assert judged(text, world_size=4).verdict == "unproven"


def test_two_lines_written_into_each_other_prove_nothing():
    lines = Job(nodes=2, gpus=1).lines()
    at = next(i for i, line in enumerate(lines) if "Selected provider" in line)
    torn = lines[at][:-9] + lines[at + 1]
    assert judged("\n".join([*lines[:at], torn, *lines[at + 2:]])).verdict == "unproven"


def test_a_peer_that_was_never_heard_from_is_told_from_one_that_was_lost():
    silent = "Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA"
    text = job_text(Job()) + f"node-1:102:999 [0] cm:46 NCCL WARN NET/OFI {silent} device but handshake failed))\n"
    assert codes(judged(text)) == ["efa_peer_unreachable"]
    assert codes(judged(text + "step 840: loss 2.11\n")) == ["efa_peer_lost"]
    known = read_logs([io.StringIO(text)])
    known.note_collective()
    assert codes(verdict(known)) == ["efa_peer_lost"]


def grouped(*, without: int | None = None) -> str:
    """Two nodes of two GPUs with sub-groups only, as a device mesh makes them: channels number ranks of a group."""
    lines = []
    for node in range(2):
        for gpu in range(2):
            rank = 2 * node + gpu
            head = f"node-{node}:{100 + rank}:300 [{gpu}] NCCL INFO "
            said = ["NET/OFI Selected provider is efa, fabric is efa (found 1 nics)", "Using network Libfabric",
                    f"comm 0xa rank {gpu} nranks 2 cudaDev {gpu} busId 1 commId 0x5{node} - Init COMPLETE",
                    f"Channel 00/0 : {gpu}[{gpu}] -> {1 - gpu}[{1 - gpu}] via P2P/CUMEM",
                    f"comm 0xb rank {node} nranks 2 cudaDev {gpu} busId 1 commId 0x6{gpu} - Init COMPLETE",
                    f"Channel 00/0 : {node}[{gpu}] -> {1 - node}[{gpu}] [send] via NET/Libfabric/0"]
            lines += [head + line for line in said if rank != without]
    return "\n".join(lines)


def test_groups_without_a_communicator_of_all_ranks_are_proven_group_by_group():
    assert judged(grouped()).verdict == "efa"
    assert codes(judged(grouped(without=3))) == ["ranks_missing"]
    assert judged(grouped(), world_size=4).verdict == "efa"
    assert judged(grouped(), world_size=6).verdict == "unproven"


def test_groups_without_ids_are_not_taken_for_complete():
    """NCCL before 2.16 and children of ncclCommSplit print no commId."""
    def bare(text: str) -> str:
        return "\n".join(line.replace(" commId 0x5", " parent 0x").replace(" commId 0x6", " parent 0x")
                         for line in text.splitlines())

    job = job_text(Job(release="2.12"))  # one communicator: its size tells who is missing
    assert judged(job).verdict == "efa"
    assert judged(*("\n".join(Job(release="2.12").ranks()[rank]) for rank in (0, 1, 3))).verdict == "unproven"
    assert codes(judged(bare(grouped()))) == ["ranks_missing"]


def test_one_process_with_several_gpus_must_prove_each():
    text = job_text(Job())
    for rank, first in ((1, 100), (3, 102)):
        text = text.replace(f":{100 + rank}:", f":{first}:")
    found = judged(text)
    assert found.verdict == "efa"
    assert [(rank.rank, rank.pid, dict(rank.channels)) for rank in found.ranks][1:3] == [
        (1, 100, {"NET/Libfabric": 2}), (2, 102, {"NET/Libfabric": 2, "P2P": 1, "SHM": 1})]
    lacking = "\n".join(line for line in text.splitlines() if "3[1] ->" not in line and "-> 3[1] [rec" not in line)
    assert judged(lacking).verdict == "unproven"


def test_a_rank_that_others_reach_over_the_network_must_say_so_itself():
    lines = [line for line in Job().lines() if not (line.startswith("node-1:103") and "via NET/" in line)]
    # rank 3 keeps a local channel, so only rank 0's lines tell that it crosses nodes
    lines.append("node-1:103:303 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM")
    found = judged("\n".join(lines))
    assert (found.verdict, codes(found), list(found.reasons[0].ranks)) == ("unproven", ["truncated"], [3])


def test_records_of_each_rank_merge_to_the_verdict_on_all_files():
    for job in (Job(), Job(nodes=3, gpus=4), Job(on_sockets=frozenset({1})), Job(nodes=1)):
        texts = ["\n".join(lines) for lines in job.ranks().values()]
        records = [json.dumps(read_logs([io.StringIO(text)], rank).to_dict()) for rank, text in enumerate(texts)]
        merged = Evidence().merge(Evidence.from_dict(json.loads(record)) for record in reversed(records))
        assert verdict(merged, job.world).to_json() == judged(*texts, world_size=job.world).to_json()


def test_a_rank_without_a_log_is_missing_after_the_merge():
    texts = ["\n".join(lines) for lines in Job().ranks().values()]
    parts = [read_logs([io.StringIO(text if rank != 1 else "")], rank) for rank, text in enumerate(texts)]
    found = verdict(Evidence().merge(parts), 4)
    assert (found.verdict, list(found.reasons[0].ranks)) == ("unproven", [1])


def test_a_rank_whose_lines_lie_in_several_files_is_one_rank(tmp_path):
    lines = Job().lines()
    for part in range(3):
        (tmp_path / f"part{part}.log").write_text("\n".join(lines[part::3]))
    found = verdict(read_logs([tmp_path, tmp_path / "part0.log"]))
    assert found.to_json() == judged(job_text(Job())).to_json()
