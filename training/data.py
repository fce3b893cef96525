"""Token sequences by their number: the order depends on the seed alone, never on the count of ranks.

Sequence k of the run belongs to step k // (sequences a step), so a run resumes from its step number and
needs no saved position, on any number of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from training.config import DataConfig, ModelConfig, TrainConfig
from training.errors import JobError
from training.model import hub_failure
from training.storage import once_per_node

_PIECE = 1 << 20
"""Characters tokenised at once, cut at a line's end: bounds the tokenizer's memory."""


class Sequences(Protocol):
    """Sequences of `sequence_length + 1` token ids: inputs, and the same shifted by one as labels."""

    def __getitem__(self, number: int) -> np.ndarray:
        """Sequence `number` of the run, from 0 without end: int64 [sequence_length + 1]."""
        ...


class RandomTokens:
    """Uniform token ids, drawn from the seed and the sequence's number."""

    def __init__(self, vocabulary: int, sequence_length: int, seed: int) -> None:
        self._vocabulary, self._length, self._seed = vocabulary, sequence_length + 1, seed

    def __getitem__(self, number: int) -> np.ndarray:
        draw = np.random.default_rng([self._seed, number])
        return draw.integers(0, self._vocabulary, self._length, dtype=np.int64)


class PackedTokens:
    """One long run of tokens cut into sequences, in a new order each epoch.

    Sequence i covers the tokens from i * sequence_length, and one more as its last label: each token
    is a label once an epoch. Only the tail shorter than a sequence is left out.
    """

    def __init__(self, tokens: np.ndarray, sequence_length: int, seed: int) -> None:
        self._tokens, self._length, self._seed = tokens, sequence_length, seed
        self.count = (len(tokens) - 1) // sequence_length
        """Sequences in an epoch."""
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, number: int) -> np.ndarray:
        epoch, position = divmod(number, self.count)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self._seed, epoch]).permutation(self.count)
        start = int(self._order[position]) * self._length
        return self._tokens[start : start + self._length + 1].astype(np.int64)


def open_data(config: TrainConfig, vocabulary: int) -> Sequences:
    """The job's data.

    Raises:
        JobError: if files or tokenizer are missing, the text is too short, or a token id is not below
            `vocabulary`, the model's.
    """
    if config.data.kind == "random":
        return RandomTokens(vocabulary, config.sequence_length, config.seed)
    tokens = read_tokens(config.data, config.model)
    if len(tokens) < config.sequence_length + 1:
        raise JobError(f"data.path {config.data.path} holds {len(tokens)} tokens; training.sequence_length "
                       f"{config.sequence_length} needs {config.sequence_length + 1} at least")
    highest = int(tokens.max())
    if highest >= vocabulary:
        raise JobError(f"data.path {config.data.path} has token id {highest}, but the model's vocabulary ends "
                       f"at {vocabulary - 1}: the tokenizer does not match the model")
    return PackedTokens(tokens, config.sequence_length, config.seed)


def step_sequences(config: TrainConfig, step: int, world: int) -> range:
    """Numbers of the sequences that all ranks together train on in one step (from 1)."""
    count = world * config.accumulation * config.micro_batch
    return range((step - 1) * count, step * count)


def micro_batches(data: Sequences, config: TrainConfig, step: int, rank: int, world: int,
                  device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """The micro-batches of one rank in one step (from 1): (input_ids, labels), each [micro_batch, sequence]."""
    first = step_sequences(config, step, world).start
    for turn in range(config.accumulation):
        start = first + (turn * world + rank) * config.micro_batch
        rows = torch.from_numpy(np.stack([data[start + i] for i in range(config.micro_batch)]))
        if device.type == "cuda":
            rows = rows.pin_memory().to(device, non_blocking=True)
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def read_tokens(data: DataConfig, model: ModelConfig) -> np.ndarray:
    """The token ids of the text, uint32; tokenised once on each node and mapped from there.

    Raises:
        JobError: as `open_data`.
    """
    files = _text_files(Path(data.path or ""))
    name = data.tokenizer or model.name
    revision = None if data.tokenizer else model.revision
    tokenizer = _tokenizer(name, revision)
    state = [name, revision, *((str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files)]
    if Path(name).is_dir():
        state += [(f.name, f.stat().st_mtime_ns) for f in sorted(Path(name).iterdir())]

    def make(target: Path) -> None:
        with open(target, "wb") as stream:
            for file in files:
                for piece in _pieces(file):
                    ids = tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"]
                    stream.write(np.asarray(ids, dtype=np.uint32).tobytes())
                stream.write(np.uint32(tokenizer.eos_token_id).tobytes())

    digest = hashlib.sha256(repr(state).encode()).hexdigest()[:16]
    return np.memmap(once_per_node(f"tokens-{digest}", make), dtype=np.uint32, mode="r")


def _text_files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(path.glob("*.txt"))
        if not files:
            raise JobError(f"data.path {path} holds no *.txt file")
    elif path.is_file():
        files = [path]
    else:
        raise JobError(f"data.path {path} does not exist on this node")
    if not any(file.stat().st_size for file in files):
        raise JobError(f"data.path {path} holds no text")
    return files


def _pieces(file: Path) -> Iterator[str]:
    try:
        with open(file, encoding="utf-8") as stream:
            while lines := stream.readlines(_PIECE):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise JobError(f"data.path: {file} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _tokenizer(name: str, revision: str | None) -> Any:
    setting = "data.tokenizer" if revision is None else "the model's tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError) as error:
        raise JobError(hub_failure(setting, name, revision, error)) from error
    if tokenizer.eos_token_id is None:
        raise JobError(f"{setting} {name} has no end-of-text token to put between documents")
    return tokenizer
