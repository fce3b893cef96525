"""A process of its own: compile a small model's layers and last norm as a GPU run does, and say what it took."""

import json

import torch
from ranks import QWEN2

from training import model, parallel, startup
from training.config import ModelConfig, ParallelConfig
from training.weights import Weights


def main():
    """Print the graphs that the first forward pass compiled, and those it took from the cache."""
    config = model.read_config(ModelConfig(weights="random", architecture={**QWEN2, "num_hidden_layers": 3}))
    trained = model.empty_model(config)
    Weights(trained, torch.device("cpu"), 1).fill(trained)
    # The device only decides whether layers are compiled; the weights stay on the CPU.
    config, device = ParallelConfig(recompute="none"), torch.device("cuda")
    for layer in model.decoder_layers(trained.model):
        parallel._wrap_forward(layer, config, "bf16", device, keeps_rng=False)
    for norm in model.outer_norms(trained.model):
        parallel._compile_forward(norm, config, "bf16", device)
    ids = torch.zeros(2, 16, dtype=torch.long)
    with torch.no_grad():
        trained(ids, ids)
    print(json.dumps(startup.compiled_graphs()))


if __name__ == "__main__":
    main()
