"""Real processes that form a gloo process group, without Ray."""

import io
import json
import multiprocessing
import os
import socket
import time
import traceback

TIMEOUT_S = 180

# A server that has imported torch and transformers once, and never used a thread pool, forks each rank.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["training.parallel", "training.step", "training.checkpointing", "training.data"])

QWEN2 = {
    "model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}


def run(world, function, *arguments):
    """`function(*arguments)` in `world` processes; what each returned, by rank. Fails if any rank fails."""
    port = _free_port()
    results = _context.SimpleQueue()
    processes = [
        _context.Process(target=_rank, args=(rank, world, port, results, function, arguments))
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    found = {}
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while len(found) < world and time.monotonic() < deadline:
            if results.empty():
                time.sleep(0.02)
                continue
            rank, value, failure = results.get()
            assert failure is None, f"rank {rank}:\n{failure}"
            found[rank] = _unpacked(value)
        assert len(found) == world, f"ranks {sorted(set(range(world)) - set(found))} did not end in {TIMEOUT_S} s"
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [found[rank] for rank in range(world)]


def exit_codes(world, function, *arguments):
    """As `run`, for ranks that end their processes themselves; each one's code, None where it had to be killed."""
    port, results = _free_port(), _context.SimpleQueue()
    processes = [_context.Process(target=_rank, args=(rank, world, port, results, function, arguments))
                 for rank in range(world)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + TIMEOUT_S
    while all(process.exitcode is None for process in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        process.join(10)
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def job(folder, *, world=1, **training):
    """train.json's contents for a tiny model on the CPU; `training` replaces parts of the training."""
    return {
        "name": "tiny",
        "training": {
            "model": {"weights": "random", "architecture": QWEN2},
            "optimizer": {"learning_rate": 3e-3, "warmup_steps": 2},
            "checkpoint": {"every_steps": 2, "keep": 2},
            "steps": 6, "sequence_length": 16, "micro_batch": 2,
            **training,
        },
        "placement": {
            "nodes": 1, "workers_per_node": world, "device": "cpu", "backend": "gloo", "storage": str(folder),
        },
    }


def losses(folder):
    """(step, loss) of each line of metrics.jsonl."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["loss"]) for record in map(json.loads, lines)]


def _rank(rank, world, port, results, function, arguments):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    try:
        dist.init_process_group("gloo", rank=rank, world_size=world)
        packed = io.BytesIO()  # else tensors go by shared memory, which ends with the process
        torch.save(function(*arguments), packed)
        results.put((rank, packed.getvalue(), None))
        dist.barrier()
    except BaseException:
        results.put((rank, None, traceback.format_exc()))


def _unpacked(value):
    import torch

    return torch.load(io.BytesIO(value), weights_only=False)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
