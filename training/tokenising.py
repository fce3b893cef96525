"""Text becomes tokens on the CPUs of the cluster, through Ray Data, before any GPU is held.

Each part of the files is one task: it reads its slices, and writes its token files to storage itself
(token_parts.py). Only counts come back, so neither the driver nor Ray's object store ever holds the data. Parts
that an earlier attempt has written are not made again. The ranks then read what `<storage>/<run>/tokens.json`
names, in the order of the rows: their losses are those of a run that tokenises on each node.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ray
import ray.data
from ray.exceptions import GetTimeoutError, RayError

from training import chat, data, data_files, model, model_folder, token_files, token_parts
from training.config import TrainConfig, TrainJob, digest
from training.data_files import Files, Slice
from training.errors import JobError, first_line
from training.storage import RunFolder, once_per_node
from training.token_files import TokenFiles
from training.tokenizer import check_matches, open_tokenizer

FILE = "tokens.json"
"""In the run's folder: which tokens its ranks are to read."""
KINDS = ("text", "jsonl", "parquet", "hub")
_PROGRESS_SECONDS = 10


@dataclass(frozen=True)
class Source:
    """What is to be tokenised, as a worker node sees it."""

    files: Files
    tokenizer: str
    """Its name."""
    digest: str
    """Over files, tokenizer and the settings that decide the tokens."""
    vocabulary: int
    """Of the model."""
    commits: dict[str, str]
    """Of data and tokenizer, where they are on the Hub, by setting."""


@dataclass(frozen=True)
class Work:
    """What every task is given."""

    config: str
    """The training as JSON."""
    source: Source
    parts: list[list[Slice]]
    storage: str
    folder: str
    """Of the tokens, below `storage`."""


def tokenise_first(job: TrainJob, run: RunFolder, patience: float | None = None) -> None:
    """Have the job's text tokenised, if it has any, and tell the ranks by tokens.json in the folder `run`.

    Needs a running Ray.

    Args:
        patience: seconds to wait for the first node with a free CPU; None: without end.

    Raises:
        JobError: naming file and row, or what else is wrong with data, tokenizer or model.
        OSError: if storage fails.
    """
    config = job.training
    if config.data.kind not in KINDS:
        run.remove(FILE)
        return
    source = _seen_by_a_worker(config, patience)
    work = plan(job, source)
    # Before they are made, so that another run takes them for used (token_parts.remove_unused).
    run.write_json(FILE, {"storage": work.storage, "folder": work.folder, "commits": source.commits})
    try:
        _make(work, config)
    except JobError:
        run.remove(FILE)
        raise
    try:
        for name in token_parts.remove_unused(work.storage, FILE):
            print(f"deleted {work.storage}/{name}: tokens that no run names any more", flush=True)
    except (OSError, ValueError) as error:
        print(f"unused tokens stay in {work.storage} for now: {first_line(error)}", flush=True)


def _make(work: Work, config: TrainConfig) -> None:
    """Have the parts made that are not there, and see that the whole can train the model."""
    source, folder = work.source, RunFolder(work.storage, work.folder)
    index = folder.read_json("index.json")
    if index is None:
        print(f"tokenising {config.data.path} on the cluster's CPUs: {len(work.parts)} parts", flush=True)
        counts = collect(_through_ray(work), len(work.parts))
        index = token_parts.whole(counts, data.origin(source.files, config.data, source.tokenizer))
        folder.write_json("index.json", index)
    print(f"tokens of {config.data.path}: {index['tokens']:,} in {index['documents']:,} documents, {folder.uri}",
          flush=True)
    data.check_tokens(config, source.vocabulary, index["tokens"], (index["highest"], index["highest_at"]),
                      index["counted"] > 0)


def tokens_of(run: RunFolder) -> TokenFiles | None:
    """The tokens that the driver had made for a run, copied once to this node and mapped; None if there are none.

    Raises:
        JobError: if they are gone, damaged or cannot be read.
    """
    found = run.read_json(FILE)
    if found is None:
        return None
    folder = RunFolder(found["storage"], found["folder"])
    try:
        return token_files.open_folder(once_per_node(found["folder"], lambda path: token_parts.join(folder, path)))
    except OSError as error:
        raise JobError(f"the job's tokens in {folder.uri} cannot be copied: {first_line(error)}") from error


def plan(job: TrainJob, source: Source) -> Work:
    """The parts of the work, and the folder that only the same parts of the same data have."""
    own = digest([source.digest, data_files.PART_BYTES])
    parts = data_files.parts(source.files)
    return Work(job.training.model_dump_json(), source, parts, job.placement.storage, f"tokens-{own}")


def look(config: str) -> Source | str:
    """On a worker node: find the files and open tokenizer and model. Returns what is wrong, if something is.

    `config`: the training as JSON.
    """
    training = TrainConfig.model_validate_json(config)
    try:
        found = data_files.find_files(training.data)
        name, tokenizer, state = open_tokenizer(training.data, training.model)
        check_matches(tokenizer, training.data, training.model)
        if training.data.rows == "messages":
            chat.check_template(tokenizer, name)
        vocabulary = model.read_config(training.model).get_text_config().vocab_size
    except JobError as error:
        return str(error)
    words = model_folder.of_tokenizer(training.data, training.model)
    commits = {"training.data.path": found.commit, words.setting: model_folder.commit(words)}
    return Source(found, name, data.digest(found, training.data, state), vocabulary,
                  {setting: commit for setting, commit in commits.items() if commit})


def tokenise_part(work: Work, number: int) -> dict[str, Any]:
    """On a worker node: write part `number`, unless it is there. Returns counts, or `failure`: what is wrong."""
    config = TrainConfig.model_validate_json(work.config)

    def make(target: Path) -> dict[str, Any]:
        tokens = data.encoded(work.source.files, work.parts[number], config.data, _tokenizer(work.config))
        return token_files.write(target, tokens, {"tokenizer": work.source.tokenizer, "part": number})

    row = {"part": number, "failure": "", **dict.fromkeys(token_parts.COUNTS, 0), "highest_at": ""}
    try:
        folder = RunFolder(work.storage, work.folder)
        return row | token_parts.keep_part(folder, number, make)
    except JobError as error:
        return row | {"failure": str(error)}
    except OSError as error:
        return row | {"failure": f"part {number} of the tokens cannot be written to {work.storage}/{work.folder}: "
                                 f"{first_line(error)}"}


@functools.lru_cache(1)
def _tokenizer(config: str) -> Any:
    training = TrainConfig.model_validate_json(config)
    return open_tokenizer(training.data, training.model)[1]


def collect(rows: Iterator[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """The counts of all `count` parts in order, from tasks that end in any order; says how far they are.

    Raises:
        JobError: at the first part that failed.
    """
    done: dict[int, dict[str, Any]] = {}
    said = time.monotonic()
    for row in rows:
        if row["failure"]:
            raise JobError(row["failure"])
        done[row["part"]] = row
        if time.monotonic() - said >= _PROGRESS_SECONDS:
            said = time.monotonic()
            tokens = sum(part["tokens"] for part in done.values())
            print(f"tokenising: {len(done)} of {count} parts, {tokens:,} tokens", flush=True)
    return [done[number] for number in range(count)]


def _seen_by_a_worker(config: TrainConfig, patience: float | None) -> Source:
    """A worker node looks: the driver's node may see neither the files nor the Hub."""
    try:
        found = ray.get(ray.remote(look).options(num_cpus=1).remote(config.model_dump_json()), timeout=patience)
    except GetTimeoutError:
        raise JobError(f"no node with a free CPU has looked at training.data.path {config.data.path} within "
                       f"{patience:g} s; see whether the worker nodes are there") from None
    except RayError as error:
        _lost(config, error)
    if isinstance(found, str):
        raise JobError(found)
    return found


def _through_ray(work: Work) -> Iterator[dict[str, Any]]:
    """Every part as one task of Ray Data; rows come as tasks end."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False  # for terminals; a log gets lines
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    numbers = [{"part": number} for number in range(len(work.parts))]
    rows = ray.data.from_items(numbers, override_num_blocks=len(numbers)).map(_Task(work), num_cpus=1)
    try:
        yield from rows.iter_rows()
    except RayError as error:
        _lost(TrainConfig.model_validate_json(work.config), error)


@dataclass(frozen=True)
class _Task:
    work: Work

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return tokenise_part(self.work, row["part"])


def _lost(config: TrainConfig, error: RayError) -> NoReturn:
    raise JobError(f"training.data.path {config.data.path} could not be tokenised on the cluster: "
                   f"{first_line(error)}") from error
