"""What the ranks of the sharding tests do; each function runs on every rank."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from training import data, model, parallel, step, weights
from training.checkpointing import Checkpoints
from training.config import CheckpointConfig, ModelConfig, OptimizerConfig, ParallelConfig, TrainConfig
from training.errors import AgreedError, JobError, together
from training.pretrained import Pretrained
from training.storage import RunFolder

CPU = torch.device("cpu")
SEQUENCE, GLOBAL_BATCH = 16, 8
PLAIN = {"sharding": "full", "reshard_after_forward": True, "reduce_dtype": "fp32", "recompute": "none"}
OPTIMIZER = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, weight_decay=0.1, clip_norm=1.0)


def training(architecture, world, **changes):
    """A TrainConfig whose global batch is the same whatever the world and the accumulation.

    `parallel`: what differs from one plain shard group.
    """
    turns = changes.pop("accumulation", 1)
    parallel = ParallelConfig(**{**PLAIN, **changes.pop("parallel", {})})
    return TrainConfig(
        model=ModelConfig(weights="random", architecture=architecture),
        optimizer=OPTIMIZER, parallel=parallel, steps=8, sequence_length=SEQUENCE, seed=3,
        micro_batch=GLOBAL_BATCH // world // turns, accumulation=turns, **changes,
    )


def batches(config, number, rank, world):
    """Micro-batches in which a third of the labels do not count, unevenly over the ranks."""
    vocabulary = config.model.architecture["vocab_size"]
    sequences = data.open_data(config, vocabulary)
    return [
        (ids, labels.masked_fill((labels % 3 == 0) | (ids[:, :1] < vocabulary // 3), -100))
        for ids, labels in data.micro_batches(sequences, config, number, rank, world, CPU)
    ]


def build(config, nodes, dtype=torch.float32, seed=None, pretrained=None):
    """The sharded model, its optimizer and mesh."""
    architecture = model.read_config(config.model)
    mesh = parallel.make_mesh(config.parallel, nodes, dist.get_world_size() // nodes, "cpu")
    trained = parallel.build(
        architecture, config.parallel, mesh, CPU, compute_dtype=dtype, pretrained=pretrained,
        seed=config.seed if seed is None else seed,
    )
    return trained, step.make_optimizer(trained, config.optimizer), mesh


def steps(built, config, numbers):
    """Train the steps; their losses and gradient norms."""
    trained, optimizer, mesh = built
    found = []
    for number in numbers:
        loss, norm = step.train_step(
            trained, optimizer, mesh, batches(config, number, dist.get_rank(), dist.get_world_size()),
            learning_rate=step.learning_rate(config.optimizer, number, config.steps),
            clip_norm=config.optimizer.clip_norm,
        )
        found.append((loss.item(), norm.item()))
    return found


def whole(trained):
    """All parameters, gathered, under transformers' names."""
    state = trained.model.state_dict()
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).clone() for name, t in state.items()}


def train_and_gather(cases):
    """For each (architecture, parallel, nodes, dtype, accumulation): state before, losses, state after."""
    found = []
    for architecture, chosen, nodes, dtype, accumulation in cases:
        config = training(architecture, dist.get_world_size(), parallel=chosen,
                          accumulation=accumulation)
        built = build(config, nodes, dtype)
        before = whole(built[0])
        numbers = steps(built, config, range(1, 5))
        after = whole(built[0])
        shards = {type(p).__name__ for p in built[0].parameters()}
        found.append((before, numbers, after, shards) if dist.get_rank() == 0 else None)
    return found


def checkpoints(storage, built, **config):
    """The checkpoints of a run `run` in this storage."""
    return Checkpoints(RunFolder(storage, "run"), CheckpointConfig(**config), built[0].model, built[1])


def save_then_train_on(architecture, chosen, nodes, storage):
    """Three steps, a checkpoint, three steps: the losses of the latter."""
    config = training(architecture, dist.get_world_size(), parallel=chosen)
    built = build(config, nodes)
    steps(built, config, range(1, 4))
    with checkpoints(storage, built) as saved:
        saved.save(3)
        return steps(built, config, range(4, 7))  # while it is written


def resume_then_train_on(architecture, chosen, nodes, storage):
    """Other random weights, replaced by the checkpoint's: the step found and the losses of three steps."""
    config = training(architecture, dist.get_world_size(), parallel=chosen)
    built = build(config, nodes, seed=99)
    done = checkpoints(storage, built).resume().step
    return done, steps(built, config, range(done + 1, done + 4))


def save_many(architecture, storage, numbers, keep, keep_every=0):
    """Checkpoints of an untrained model at the given steps."""
    built = build(training(architecture, dist.get_world_size()), 1)
    with checkpoints(storage, built, keep=keep, keep_every=keep_every) as saved:
        for number in numbers:
            saved.save(number)


def load_pretrained(path, architecture):
    """The whole state of a model loaded from a folder, or the reason why not."""
    config = training(architecture, dist.get_world_size())
    named = ModelConfig(name=str(path))
    try:
        loaded = Pretrained.load(named, model.read_config(named))
        trained, _, _ = build(config, 1, pretrained=loaded)
    except AgreedError as error:
        return str(error)
    return whole(trained)


def peak_of_load(path, architecture):
    """Most bytes of anonymous memory (not mapped files) that loading a folder took above what was there before."""
    config, named = training(architecture, dist.get_world_size()), ModelConfig(name=str(path))
    before, highest, fill = _anonymous_bytes(), [0], weights.Weights.fill

    def watched(self, part):
        highest.append(_anonymous_bytes())
        fill(self, part)
        highest.append(_anonymous_bytes())

    weights.Weights.fill = watched
    loaded = Pretrained.load(named, model.read_config(named))
    highest.append(_anonymous_bytes())
    _built = build(config, 1, pretrained=loaded)
    return max(highest) - before


def _anonymous_bytes():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def fail_on_one_rank():
    """The reason that each rank gets when only rank 1 fails."""

    def act():
        if dist.get_rank() == 1:
            raise JobError("the file is not on this node")
        return "fine"

    try:
        return together(act)
    except AgreedError as error:
        return f"agreed: {error}"


def steps_around_a_broken_one(architecture, broken):
    """One good step, then one in which `broken` is not finite, then a good one: what changed in which.

    Returns:
        [loss, gradient norm] of each step, and for each whether weights, moments or the count of steps moved.
    """
    config = training(architecture, dist.get_world_size())
    built = build(config, 1)
    trained, optimizer, mesh = built
    numbers, moved, before = [], [], _all_state(trained, optimizer)
    for number in (1, 2, 3):
        hook = _break(trained, broken) if number == 2 and dist.get_rank() == 1 else None
        numbers += steps((trained, optimizer, mesh), config, [number])
        after = _all_state(trained, optimizer)
        moved.append(len(before) != len(after) or not all(map(torch.equal, before, after)))
        before = after
        if hook is not None:
            hook.remove()
    return numbers, moved


def _break(trained, broken):
    if broken == "loss":
        return trained.register_forward_hook(lambda _module, _inputs, loss: loss * float("nan"))
    layer = model.decoder_layers(trained.model)[0]
    mlp = layer.get_submodule("mlp")
    return mlp.register_full_backward_pre_hook(lambda _module, grads: tuple(g * float("inf") for g in grads))


def _all_state(trained, optimizer):
    found = [p.full_tensor() if isinstance(p, DTensor) else p for p in trained.parameters()]
    for state in optimizer.state.values():
        found += [v.full_tensor() if isinstance(v, DTensor) else v for v in state.values()]
    return [value.clone() for value in found]
