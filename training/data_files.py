"""The files of `training.data`, on a disk, on S3 or in a dataset of the Hub, and their parts for one task each."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, hf_hub_download
from pyarrow import fs

from training.config import DataConfig
from training.errors import JobError, first_line
from training.model_folder import hub_failure

PART_BYTES = 64 << 20
"""Of the files that one task tokenises: a minute's work, and what a task that dies loses."""
MOST_ROW = 64 << 20
"""Bytes of one row once unpacked: a file of a few KiB may hold one that fills a node's memory."""
MOST_PARTS = 1 << 20
"""Values in one row: each becomes an object of Python."""
_ENDINGS = {"text": (".txt",), "jsonl": (".jsonl", ".jsonl.gz"), "parquet": (".parquet",),
            "hub": (".parquet", ".jsonl", ".jsonl.gz")}
# What `datasets` takes for the name of a split in a file's path (datasets/data_files.py).
_SPLIT_WORDS = {"train": ("train", "training"), "validation": ("validation", "valid", "dev", "val"),
                "test": ("test", "testing", "eval", "evaluation")}


@dataclass(frozen=True)
class DataFile:
    """A file, by its path in the filesystem or in the dataset's repository."""

    path: str
    size: int
    changed: int | None
    """Time of its last change in ns; None in a dataset of the Hub, whose commit says it all."""


@dataclass(frozen=True)
class Files:
    """The files of `training.data.path`, in name order. Small enough to be sent to other processes."""

    root: str
    """Folder, URI, or the dataset's name."""
    files: list[DataFile]
    commit: str | None = None
    """Of the dataset on the Hub; None: the files lie under a path."""

    @property
    def state(self) -> list[Any]:
        """What changes when a file changes."""
        return [self.root, self.commit, *((file.path, file.size, file.changed) for file in self.files)]

    def opened(self, file: DataFile) -> tuple[fs.FileSystem, str]:
        """The filesystem of `file` and its path there; one of the Hub is downloaded to this node.

        Raises:
            JobError: if it cannot be had.
        """
        if self.commit is None:
            return _open(self.root)[0], file.path
        try:
            return fs.LocalFileSystem(), hf_hub_download(self.root, file.path, repo_type="dataset",
                                                         revision=self.commit)
        except Exception as error:  # its HTTP client has exceptions of its own
            raise JobError(hub_failure("training.data.path", self.root, self.commit, error)) from error

    def name(self, file: DataFile) -> str:
        """The file as a person knows it: `/data/a.jsonl`, `s3://bucket/a.jsonl`, `our/dataset/a.jsonl`."""
        if self.commit is not None:
            return f"{self.root}/{file.path}"
        scheme = self.root.partition("://")[0] if "://" in self.root else "file"
        return file.path if scheme == "file" else f"{scheme}://{file.path}"


@dataclass(frozen=True)
class Slice:
    """The `index`-th of `count` parts of a file: lines by their first byte, row groups by their number."""

    file: DataFile
    index: int = 0
    count: int = 1


def find_files(data: DataConfig, commit: str | None = None) -> Files:
    """The files that `data` names. `commit`: of a Hub dataset, where it is known already.

    Raises:
        JobError: if there are none, or only empty ones.
    """
    if data.kind == "hub":
        return _of_dataset(data, commit)
    path = data.path or ""
    filesystem, root = _open(path)
    try:
        info = filesystem.get_file_info(root.rstrip("/"))
        if info.type == fs.FileType.NotFound:
            raise JobError(f"training.data.path {path} does not exist on this node")
        entries = [info]
        if info.type == fs.FileType.Directory:
            inside = filesystem.get_file_info(fs.FileSelector(root.rstrip("/"), recursive=data.kind != "text"))
            wanted = (e for e in inside if e.type == fs.FileType.File and e.path.endswith(_ENDINGS[data.kind]))
            entries = sorted(wanted, key=lambda entry: entry.path)
    except OSError as error:
        raise JobError(f"training.data.path {path} cannot be read: {first_line(error)}") from error
    if not entries:
        raise JobError(f"training.data.path {path} holds no {_wanted(data)} file")
    if not any(entry.size for entry in entries):
        raise JobError(f"training.data.path {path} holds no text")
    return Files(path, [DataFile(e.path, e.size or 0, e.mtime_ns) for e in entries])


def parts(found: Files) -> list[list[Slice]]:
    """The work of one task each: part of a large file, or small files together. The same for the same files."""
    made: list[list[Slice]] = []
    room = 0
    for file in found.files:
        count = 1 if file.path.endswith(".gz") else max(1, round(file.size / PART_BYTES))
        for index in range(count):
            size = file.size // count
            if not made or size > room:
                made.append([])
                room = PART_BYTES
            made[-1].append(Slice(file, index, count))
            room -= size
    return made


def _open(path: str) -> tuple[fs.FileSystem, str]:
    try:
        return fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    except (ValueError, OSError) as error:
        raise JobError(f"training.data.path {path} cannot be opened: {first_line(error)}") from error


def _wanted(data: DataConfig) -> str:
    return " or ".join(f"*{ending}" for ending in _ENDINGS[data.kind])


def _of_dataset(data: DataConfig, commit: str | None) -> Files:
    name = data.path or ""
    try:
        info = HfApi().dataset_info(name, revision=commit or data.revision, files_metadata=True)
    except Exception as error:  # its HTTP client has exceptions of its own
        raise JobError(hub_failure("training.data.path", name, data.revision, error)) from error
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or []}
    card = info.card_data.to_dict() if info.card_data else {}
    names = split_files(sorted(sizes), card.get("configs") or [], data)
    names = [n for n in names if n.endswith(_ENDINGS["hub"])]
    if not names:
        raise JobError(f"training.data.path {name} has no {_wanted(data)} file of split {data.split}")
    return Files(name, [DataFile(n, sizes[n], None) for n in names], info.sha or commit or "")


def split_files(names: list[str], configs: list[dict[str, Any]], data: DataConfig) -> list[str]:
    """The files of `data.split`: by the dataset card's `configs`, or else by their names as `datasets` does.

    Args:
        names: of all files of the repository.
        configs: of the card; empty where it has none.

    Raises:
        JobError: if there is no such subset or split; names those that there are.
    """
    known = {str(config.get("config_name", "default")): config for config in configs}
    if not known:
        if data.subset is not None:
            raise JobError(f"training.data.subset {data.subset}: dataset {data.path} has no subsets; remove it")
        return _by_name(names, data)
    default = next((n for n, config in known.items() if config.get("default")), "default")
    subset = data.subset or (next(iter(known)) if len(known) == 1 else default)
    if subset not in known:
        raise JobError(f"training.data.subset: dataset {data.path} has {', '.join(known)}; name one of them")
    splits = _card_splits(known[subset].get("data_files"))
    if not splits:
        folder = str(known[subset].get("data_dir") or "")
        return _by_name([n for n in names if n.startswith(folder)], data)
    if data.split not in splits:
        raise JobError(f"training.data.split {data.split}: dataset {data.path} has {', '.join(splits)}")
    return [n for n in names if any(fnmatch.fnmatchcase(n, p.removeprefix("./")) for p in splits[data.split])]


def _card_splits(files: Any) -> dict[str, list[str]]:
    """Patterns by split, from any of the forms that a card may have: text, a list, a list of {split, path}."""
    if isinstance(files, str):
        files = [files]
    if isinstance(files, dict):
        files = [{"split": split, "path": path} for split, path in files.items()]
    splits: dict[str, list[str]] = {}
    for entry in files or []:
        split, path = (entry.get("split", "train"), entry["path"]) if isinstance(entry, dict) else ("train", entry)
        splits.setdefault(str(split), []).extend([path] if isinstance(path, str) else path)
    return splits


def _by_name(names: list[str], data: DataConfig) -> list[str]:
    names = [name for name in names if name.endswith(_ENDINGS["hub"])]
    found = {split: [n for n in names if _names_split(n, words)] for split, words in
             {**_SPLIT_WORDS, data.split: _SPLIT_WORDS.get(data.split, (data.split,))}.items()}
    if not any(found.values()):
        found["train"] = names  # no file says what it is for: all are for training
    if not found.get(data.split):
        have = ", ".join(split for split, files in found.items() if files) or "none"
        raise JobError(f"training.data.split {data.split}: dataset {data.path} has {have}")
    return found[data.split]


def _names_split(name: str, words: tuple[str, ...]) -> bool:
    """Whether a path has one of the words for itself: `data/train-00000-of-00002.parquet`, not `constraints/a`."""
    return re.search(rf"(?:^|[/._\- 0-9])(?:{'|'.join(words)})(?:[/._\- 0-9]|$)", name) is not None
