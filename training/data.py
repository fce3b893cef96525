"""Token sequences by their number: the order depends on the seed alone, never on the count of ranks.

Sequence k of the run belongs to step k // (sequences a step), so a run resumes from its step number and
needs no saved position, on any number of ranks. Text is tokenised before the first step into token files
(token_files.py), so a step only ever copies from mapped memory.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from pyarrow import fs
from torch import Tensor

from training import chat, data_files, documents, token_files
from training.config import DataConfig, ModelConfig, TrainConfig
from training.errors import JobError, first_line
from training.loss import IGNORE
from training.storage import once_per_node
from training.token_files import TokenFiles
from training.tokenizer import check_matches, open_tokenizer


class Row(NamedTuple):
    """One sequence to train on, each [sequence_length] int64."""

    inputs: np.ndarray
    labels: np.ndarray
    """The token that follows each input; -100 where none counts."""
    positions: np.ndarray | None
    """Each input's place in its document; None: documents are joined."""


class Sequences(Protocol):
    """The run's sequences, by their number from 0 without end."""

    def row(self, number: int) -> Row:
        """Sequence `number` of the run."""
        ...


class RandomTokens:
    """Uniform token ids, drawn from the seed and the sequence's number."""

    def __init__(self, vocabulary: int, sequence_length: int, seed: int) -> None:
        self._vocabulary, self._length, self._seed = vocabulary, sequence_length + 1, seed

    def __getitem__(self, number: int) -> np.ndarray:
        draw = np.random.default_rng([self._seed, number])
        return draw.integers(0, self._vocabulary, self._length, dtype=np.int64)

    def row(self, number: int) -> Row:
        """Sequence `number` of the run."""
        ids = self[number]
        return Row(ids[:-1], ids[1:], None)


class PackedTokens:
    """One long run of tokens cut into sequences, in a new order each epoch.

    Sequence i covers the tokens from i * sequence_length, and one more as its last label: each token
    is a label once an epoch. Only the tail shorter than a sequence is left out. No sequence is padded.

    Args:
        tokens: [tokens] ids of all documents.
        sequence_length: of a sequence's inputs.
        seed: of the order.
        counted: [tokens], 0 for a token that is never a label; None: all are.
        starts: [documents], where each begins: they are kept apart; None: they are joined.
    """

    def __init__(self, tokens: np.ndarray, sequence_length: int, seed: int, counted: np.ndarray | None = None,
                 starts: np.ndarray | None = None) -> None:
        self._tokens, self._length, self._seed = tokens, sequence_length, seed
        self._counted, self._starts = counted, starts
        self.count = (len(tokens) - 1) // sequence_length
        """Sequences in an epoch."""
        self._epoch, self._order = -1, np.empty(0, dtype=np.int64)

    def __getitem__(self, number: int) -> np.ndarray:
        start = self._start(number)
        return self._tokens[start : start + self._length + 1].astype(np.int64)

    def row(self, number: int) -> Row:
        """Sequence `number` of the run."""
        ids, start = self[number], self._start(number)
        labels, positions = ids[1:].copy(), None
        if self._counted is not None:
            labels[self._counted[start + 1 : start + self._length + 1] == 0] = IGNORE
        if self._starts is not None:
            low, high = np.searchsorted(self._starts, [start, start + self._length + 1])
            inside = np.asarray(self._starts[low:high], dtype=np.int64) - start
            labels[inside[inside > 0] - 1] = IGNORE  # no document foretells the next one
            place = np.arange(self._length)
            first = np.zeros(self._length, dtype=np.int64)
            inside = inside[inside < self._length]
            first[inside] = inside
            positions = place - np.maximum.accumulate(first)
        return Row(ids[:-1], labels, positions)

    def _start(self, number: int) -> int:
        epoch, position = divmod(number, self.count)
        if epoch != self._epoch:
            order = np.random.default_rng([self._seed, epoch]).permutation(self.count)
            self._epoch, self._order = epoch, order
        return int(self._order[position]) * self._length


def open_data(config: TrainConfig, vocabulary: int, made: TokenFiles | None = None) -> Sequences:
    """The job's data.

    Args:
        made: the tokens of the job's text, where the driver had them made; None: this node makes them.

    Raises:
        JobError: if files or tokenizer are missing or damaged, the text is too short, or a token id is not
            below `vocabulary`, the model's.
    """
    if config.data.kind == "random":
        return RandomTokens(vocabulary, config.sequence_length, config.seed)
    found = made or read_tokens(config.data, config.model)
    answers = found.counted is None or bool(found.counted.any())
    check_tokens(config, vocabulary, len(found.tokens), (found.highest, found.highest_at), answers)
    starts = found.starts if config.data.documents == "apart" else None
    return PackedTokens(found.tokens, config.sequence_length, config.seed, found.counted, starts)


def check_tokens(config: TrainConfig, vocabulary: int, count: int, highest: tuple[int, str], answers: bool) -> None:
    """Whether these tokens can train this model.

    Args:
        vocabulary: of the model.
        count: of all tokens.
        highest: the highest token id, and where it stands.
        answers: whether any token counts in the loss.

    Raises:
        JobError: if they cannot.
    """
    path = config.data.path
    if count < config.sequence_length + 1:
        raise JobError(f"training.data.path {path} holds {count} tokens; training.sequence_length "
                       f"{config.sequence_length} needs {config.sequence_length + 1} at least")
    if highest[0] >= vocabulary:
        raise JobError(f"training.data.path {path} has token id {highest[0]}, but the model's vocabulary ends "
                       f"at {vocabulary - 1}: the tokenizer does not match the model ({highest[1]})")
    if not answers:
        raise JobError(f"training.data.path {path} has no answer whose tokens count in the loss")


def check_before_start(data: DataConfig) -> None:
    """Read the first rows on this machine, if the files are seen from it: a mistake then holds no GPU.

    Raises:
        JobError: naming file and row.
    """
    path = data.path or ""
    if data.kind in ("random", "hub") or "://" in path or not Path(path).exists():
        return  # only the workers may see it; they look before they load the model
    if data.kind == "tokens":
        token_files.open_folder(Path(path))
        return
    found = data_files.find_files(data)
    for number, _ in enumerate(documents.documents(found, data_files.parts(found)[0], data)):
        if number == _FIRST_ROWS:
            return


_FIRST_ROWS = 100


def step_sequences(config: TrainConfig, step: int, world: int) -> range:
    """Numbers of the sequences that all ranks together train on in one step (from 1)."""
    count = world * config.accumulation * config.micro_batch
    return range((step - 1) * count, step * count)


Batch = tuple[Tensor, ...]
"""(input_ids, labels) or (input_ids, labels, position_ids), each [micro_batch, sequence]."""


def micro_batches(data: Sequences, config: TrainConfig, step: int, rank: int, world: int,
                  device: torch.device) -> Iterator[Batch]:
    """The micro-batches of one rank in one step (from 1)."""
    first = step_sequences(config, step, world).start
    for turn in range(config.accumulation):
        start = first + (turn * world + rank) * config.micro_batch
        rows = [data.row(start + i) for i in range(config.micro_batch)]
        columns = [column for column in zip(*rows, strict=True) if column[0] is not None]
        batch = [torch.from_numpy(np.stack(column)) for column in columns]
        if device.type == "cuda":
            batch = [part.pin_memory().to(device, non_blocking=True) for part in batch]
        yield tuple(batch)


class Prefetched:
    """The micro-batches of each step, made by a thread while the step before it runs.

    Args:
        data, config, rank, world, device: as for `micro_batches`.
    """

    def __init__(self, data: Sequences, config: TrainConfig, rank: int, world: int, device: torch.device) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="eagleray-data")
        self._make = lambda step: list(micro_batches(data, config, step, rank, world, device))
        self._next: tuple[int, Future[list[Batch]]] | None = None
        self._last = config.steps
        self.waited_seconds = 0.0
        """How long the last call of `step` waited."""

    def step(self, number: int) -> list[Batch]:
        """The micro-batches of step `number`; waits where the thread is not through yet."""
        began = time.perf_counter()
        if self._next is None or self._next[0] != number:
            self._next = (number, self._pool.submit(self._make, number))
        batches = self._next[1].result()
        self.waited_seconds = time.perf_counter() - began
        self._next = (number + 1, self._pool.submit(self._make, number + 1)) if number < self._last else None
        return batches


def read_tokens(data: DataConfig, model: ModelConfig) -> TokenFiles:
    """The tokens of the data, made once on each node and mapped from there.

    Raises:
        JobError: as `open_data`.
    """
    if data.kind == "tokens":
        return token_files.open_folder(_on_this_node(data.path or ""))
    found = data_files.find_files(data)
    name, tokenizer, state = open_tokenizer(data, model)
    check_matches(tokenizer, data, model)

    def make(target: Path) -> None:
        tokenise(target, found, data, tokenizer, name)

    return token_files.open_folder(once_per_node(f"tokens-{digest(found, data, state)}", make))


def digest(found: data_files.Files, data: DataConfig, tokenizer: str) -> str:
    """Sixteen hex digits over all that decides the tokens. `tokenizer`: a digest of its files."""
    state = [tokenizer, data.kind, data.rows, data.column, *found.state]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def tokenise(target: Path, found: data_files.Files, data: DataConfig, tokenizer: Any, name: str) -> dict[str, Any]:
    """Write the token files of `found` into the folder `target`. Returns the contents of its index.json.

    Raises:
        JobError: naming file and row that cannot be used.
    """
    if data.rows == "messages":
        chat.check_template(tokenizer, name)
    slices = [one for part in data_files.parts(found) for one in part]
    return token_files.write(target, encoded(found, slices, data, tokenizer), origin(found, data, name))


def encoded(found: data_files.Files, slices: Iterable[data_files.Slice], data: DataConfig, tokenizer: Any,
            ) -> Iterator[tuple[documents.Document, chat.Tokens]]:
    """The documents of the slices with their tokens, one after the other.

    Raises:
        JobError: naming file and row that cannot be used.
    """
    return ((one, chat.encode(one, tokenizer)) for one in documents.documents(found, slices, data))


def origin(found: data_files.Files, data: DataConfig, name: str) -> dict[str, Any]:
    """What the tokens of `found` are made from, for their index.json. `name`: of the tokenizer."""
    return {"tokenizer": name, "rows": data.rows,
            "files": [{"path": file.path, "bytes": file.size} for file in found.files]}


def _on_this_node(path: str) -> Path:
    if "://" not in path:
        return Path(path)

    def download(target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        filesystem, root = fs.FileSystem.from_uri(path.rstrip("/"))
        for name in token_files.NAMES:  # by name: a key of S3 may be any text, ../../x too
            if filesystem.get_file_info(f"{root}/{name}").type == fs.FileType.File:
                fs.copy_files(f"{root}/{name}", str(target / name), source_filesystem=filesystem)

    try:
        return once_per_node("tokens-" + hashlib.sha256(path.encode()).hexdigest()[:16], download)
    except (OSError, ValueError) as error:
        raise JobError(f"training.data.path {path} cannot be read: {first_line(error)}") from error
