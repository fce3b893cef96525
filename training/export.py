"""A checkpoint as a Hugging Face folder, tensor by tensor on a CPU: `from_pretrained` loads what was trained.

Never more than one file of the export is in memory; the optimizer's part of the checkpoint is not read.
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PretrainedConfig

from training import checkpoint, model_folder
from training.checkpoint_files import ShardReader
from training.config import TrainConfig
from training.errors import JobError, first_line
from training.model import CausalLMWithLoss, empty_model, read_config
from training.storage import RunFolder

_FILE_BYTES = 2 << 30
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_PREFIX = "model."
"""Of the model's tensors in a checkpoint (checkpointing.py)."""


def export(folder: RunFolder, step: int | None, training: TrainConfig, target: Path, dtype: str = "bf16",
           file_bytes: int = _FILE_BYTES) -> int:
    """Write the model of a checkpoint into `target`, which appears only when it is complete.

    Args:
        folder: of the run.
        step: of the checkpoint; None: the newest.
        training: the run's.
        target: a folder that does not exist yet.
        dtype: `bf16`, or `fp32` as the weights were trained.
        file_bytes: the largest size of one safetensors file, but for a tensor that is larger.

    Returns:
        The step.

    Raises:
        JobError: if there is no such checkpoint, `target` exists, model and checkpoint do not match, or a tokenizer
            on S3 cannot be read.
    """
    if target.exists():
        raise JobError(f"{target} exists already; remove it or choose another folder")
    step = _step(folder, step)
    config = read_config(training.model)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    reader = None
    try:
        reader = ShardReader(folder, checkpoint.read_record(folder, step))
        _write_tensors(reader, empty_model(config), partial, _DTYPES[dtype], file_bytes)
        _write_others(config, training, partial, _DTYPES[dtype])
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if reader is not None:
            reader.forget()
    return step


def _step(folder: RunFolder, step: int | None) -> int:
    complete = checkpoint.complete_steps(folder)
    if not complete:
        raise JobError(f"{folder.uri} holds no complete checkpoint")
    if step is None:
        return complete[-1]
    if step not in complete:
        have = ", ".join(map(str, complete))
        raise JobError(f"{folder.uri} has no complete checkpoint of step {step}; it has {have}")
    return step


def _write_tensors(reader: ShardReader, model: CausalLMWithLoss, target: Path, dtype: torch.dtype,
                   file_bytes: int) -> None:
    metadata = reader.read_metadata().state_dict_metadata
    stored = {name.removeprefix(_PREFIX): found for name, found in metadata.items()
              if name.startswith(_PREFIX) and isinstance(found, TensorStorageMetadata)}
    state = model.model.state_dict()
    names = _untied(state, model)
    lacking = [name for name in names if name not in stored]
    if lacking:
        raise JobError(f"the checkpoint lacks {len(lacking)} of the model's weights, first {lacking[0]}; it was "
                       "saved with another model")
    wrong = next((name for name in names if stored[name].size != state[name].shape), None)
    if wrong is not None:
        raise JobError(f"{wrong} is {list(stored[wrong].size)} in the checkpoint and {list(state[wrong].shape)} in "
                       "the model")
    files = _in_files({name: stored[name].size.numel() * dtype.itemsize for name in names}, file_bytes)
    placed: dict[str, str] = {}
    for number, part in enumerate(files, 1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors" if len(files) > 1 else "model.safetensors"
        save_file(_read(reader, {key: stored[key] for key in part}, dtype), target / name, {"format": "pt"})
        placed |= dict.fromkeys(part, name)
    if len(files) > 1:
        total = sum(stored[key].size.numel() * dtype.itemsize for key in names)
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _untied(state: dict[str, Tensor], model: CausalLMWithLoss) -> list[str]:
    """Names of the weights, each tied one once: the second name is made again by `from_pretrained`."""
    seen: set[int] = set()
    names = []
    parameters = dict(model.model.named_parameters(remove_duplicate=False))
    for name in state:
        tensor = parameters.get(name)
        if tensor is None or id(tensor) not in seen:
            names.append(name)
        seen.add(id(tensor))
    return names


def _in_files(sizes: dict[str, int], file_bytes: int) -> list[list[str]]:
    files: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if not files or size > room:
            files.append([])
            room = file_bytes
        files[-1].append(name)
        room -= size
    return files


def _read(reader: ShardReader, wanted: dict[str, TensorStorageMetadata], dtype: torch.dtype) -> dict[str, Tensor]:
    found = {}
    for name, one in wanted.items():
        whole = {f"{_PREFIX}{name}": torch.empty(one.size, dtype=one.properties.dtype)}
        try:
            state_dict_loader.load(whole, storage_reader=reader, no_dist=True)
        except CheckpointException as error:
            raise JobError(first_line(error.failures[0][0])) from error
        tensor = whole[f"{_PREFIX}{name}"]
        found[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return found


def _write_tokenizer(source: model_folder.Source, target: Path) -> None:
    """Not every model has one, and a folder of the nodes may not be here; what lies on S3 is not to be lost.

    Raises:
        JobError: if it lies on S3, and cannot be read now.
    """
    try:
        AutoTokenizer.from_pretrained(model_folder.small_files(source)).save_pretrained(target)
    except (OSError, ValueError, KeyError) as error:
        if isinstance(error, JobError) and "://" in source.name:
            raise
        print(f"no tokenizer was written: {source.name}: {first_line(error)}")


def _write_others(config: PretrainedConfig, training: TrainConfig, target: Path, dtype: torch.dtype) -> None:
    written = AutoConfig.for_model(**config.to_dict())
    written.dtype = dtype
    written.architectures = [type(empty_model(config).model).__name__]
    written.save_pretrained(target)
    named = training.model.architecture is None
    if named or training.data.tokenizer:
        _write_tokenizer(model_folder.of_tokenizer(training.data, training.model), target)
    generation = GenerationConfig.from_model_config(config)
    if named:
        with suppress(OSError):  # not every model has one
            generation = GenerationConfig.from_pretrained(
                model_folder.small_files(model_folder.of_model(training.model)))
    generation.save_pretrained(target)
