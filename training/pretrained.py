"""Pretrained weights in safetensors files on this node's disk, mapped and read a tensor at a time by every rank."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from training import model_folder
from training.config import ModelConfig
from training.errors import JobError, first_line, together
from training.model import empty_model
from training.storage import once_per_node

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class Stored(NamedTuple):
    """A tensor in a file, by the header of that file."""

    file: Path
    shape: list[int]


class Pretrained:
    """The weights of a checkpoint by the model's names. No rank holds more than one of its tensors at a time.

    Args:
        files: where the checkpoint's tensors lie, by the checkpoint's names.
        names: the checkpoint's name of each of the model's tensors; tied ones are there once.
    """

    def __init__(self, files: dict[str, Stored], names: dict[str, str]) -> None:
        self._files, self._names = files, names
        self._open: dict[Path, Any] = {}

    @classmethod
    def load(cls, model: ModelConfig, config: PretrainedConfig) -> Pretrained:
        """Bring the weights of `model` to every node, once, and see that they fill it. Call on all ranks.

        Raises:
            AgreedError: if they cannot be had or do not fill the model.
        """
        return together(lambda: cls.open(model, config))

    @classmethod
    def open(cls, model: ModelConfig, config: PretrainedConfig) -> Pretrained:
        """As `load`, on one rank.

        Raises:
            JobError: naming file and tensor.
        """
        folder = model_folder.all_files(model_folder.of_model(model))
        built = empty_model(config).model
        files = read_headers(folder, model.name)
        try:
            return cls(files, match(files, built, model.name))
        except _NeedsConversionError:
            files = read_headers(_converted(folder, config, model.name), model.name)
            return cls(files, match(files, built, model.name))

    def copy_into(self, name: str, target: Tensor) -> None:
        """Copy the checkpoint's tensor for `name`, if it has one, into `target`: converted to its dtype."""
        stored = self._names.get(name)
        if stored is None:
            return
        file = self._files[stored].file
        if file not in self._open:
            self._open[file] = safe_open(file, "pt", device="cpu")
        target.copy_(self._open[file].get_tensor(stored))


class _NeedsConversionError(JobError):
    """The checkpoint names its tensors in another way than the model."""


def read_headers(folder: Path, name: str) -> dict[str, Stored]:
    """All tensors of the safetensors files in `folder`, by their names there; only headers are read.

    Raises:
        JobError: if there are none, or one that the index names is missing or cut short.
    """
    if (folder / _INDEX).is_file():
        try:
            placed: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        except (ValueError, KeyError) as error:
            raise JobError(f"training.model.name {name}: {_INDEX} is damaged; fetch the model again") from error
        files = sorted(set(placed.values()))
    else:
        files = [_ONE_FILE]
        if not (folder / _ONE_FILE).is_file():
            raise JobError(f"training.model.name {name} holds no {_ONE_FILE}; save it with save_pretrained, or set "
                           "training.model.weights to random")
    found: dict[str, Stored] = {}
    for file in files:
        if not (folder / file).is_file():
            raise JobError(f"training.model.name {name} lacks {file}, which its {_INDEX} names; fetch the model "
                           "again")
        try:
            found |= {key: Stored(folder / file, shape) for key, shape in _header(folder / file).items()}
        except (OSError, ValueError, KeyError, struct.error, SafetensorError) as error:
            raise JobError(f"training.model.name {name}: {file} is damaged or cut short ({first_line(error)}); "
                           "fetch the model again") from error
    return found


def _header(file: Path) -> dict[str, list[int]]:
    with safe_open(file, "pt", device="cpu") as opened:  # sees that the file is as long as its header says
        return {key: list(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118


def match(files: dict[str, Stored], model: PreTrainedModel, name: str) -> dict[str, str]:
    """The checkpoint's name for each of the model's tensors, tied ones once.

    Raises:
        JobError: if a tensor has another shape, or the checkpoint is quantised, or lacks one.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        raise JobError(f"training.model.name {name} is quantised, and quantised weights cannot be trained; name "
                       "the model that it was made from")
    prefix = f"{model.base_model_prefix}."
    names, lacking = {}, []
    for same in _tied(model):
        spellings = [s for one in same for s in (one, one.removeprefix(prefix), prefix + one)]
        stored = next((s for s in spellings if s in files), None)
        if stored is None:
            lacking.append(same[0])
            continue
        names[same[0]] = stored
        shape = list(model.get_parameter_or_buffer(same[0]).shape)
        if files[stored].shape != shape:
            raise JobError(f"training.model.name {name}: {stored} is {files[stored].shape} in "
                           f"{files[stored].file.name} and {shape} by config.json; both must be of the same model")
    if lacking:
        raise _NeedsConversionError(f"training.model.name {name}: the checkpoint lacks {len(lacking)} of the "
                                    f"model's weights, first {lacking[0]}; it is of another model or not complete")
    return names


def _tied(model: PreTrainedModel) -> list[list[str]]:
    """Names of the model's tensors, those of one tensor together."""
    groups: dict[int, list[str]] = {}
    for key, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(key)
    return list(groups.values())


def _converted(folder: Path, config: PretrainedConfig, name: str) -> Path:
    """The weights under the names of this transformers, written once a node.

    Old mixtures of experts, say, have a tensor for each expert. This one process of the node holds the whole
    model in main memory meanwhile, in the checkpoint's precision.
    """

    def make(target: Path) -> None:
        try:
            loaded, notes = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype="auto", output_loading_info=True
            )  # pyright: ignore[reportGeneralTypeIssues]
        except (OSError, ValueError, RuntimeError) as error:
            raise JobError(f"training.model.name {name}: {first_line(error)}") from error
        missing = sorted(notes["missing_keys"])
        if missing:
            raise JobError(f"training.model.name {name}: the checkpoint lacks {len(missing)} of the model's "
                           f"weights, first {missing[0]}; it is of another model or not complete")
        state = loaded.state_dict()
        target.mkdir()
        tensors = {same[0]: state[same[0]].contiguous() for same in _tied(loaded)}
        save_file(tensors, target / _ONE_FILE, {"format": "pt"})

    files = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(folder.iterdir())]
    digest = hashlib.sha256(repr((str(folder), torch.__version__, files)).encode()).hexdigest()[:16]
    return once_per_node(f"converted-{digest}", make)
