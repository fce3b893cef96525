"""A model's files on this node: from a folder, S3 or the Hub, brought there once and read locally by all ranks."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from huggingface_hub import get_token, snapshot_download, try_to_load_from_cache
from pyarrow import fs

from training.config import DataConfig, ModelConfig
from training.errors import JobError, first_line
from training.storage import once_per_node

_SMALL = ("*.json", "*.txt", "*.model", "*.jinja")
"""Config, tokenizer, index of the weights."""
_WITH_WEIGHTS = (*_SMALL, "*.safetensors")
_OTHER_FORMATS = ("*/*", "consolidated*")


@dataclass(frozen=True)
class Source:
    """Where a model or tokenizer lies, and the setting that says so."""

    setting: str
    name: str
    """A folder, an s3:// prefix, or a Hub id."""
    revision: str | None
    """Of the Hub; None: the newest."""

    @property
    def is_on_hub(self) -> bool:
        """Whether it is a Hub id: no URI, no folder here, nothing that is written like a path."""
        return not ("://" in self.name or self.name.startswith(("/", ".", "~")) or Path(self.name).is_dir())


def of_model(model: ModelConfig) -> Source:
    """Where the model lies."""
    return Source("training.model.name", model.name, model.revision)


def of_tokenizer(data: DataConfig, model: ModelConfig) -> Source:
    """Where the tokenizer lies: `data.tokenizer`, or else with the model."""
    return Source("training.data.tokenizer", data.tokenizer, None) if data.tokenizer else of_model(model)


def small_files(source: Source) -> Path:
    """A folder on this node with config and tokenizer. While one rank downloads, the others of its node wait.

    Raises:
        JobError: naming setting and cause.
    """
    return _folder(source, _SMALL)


def all_files(source: Source) -> Path:
    """A folder on this node with config, tokenizer and safetensors; else as `small_files`."""
    return _folder(source, _WITH_WEIGHTS)


def is_commit(revision: str | None) -> bool:
    """Whether a revision means the same files for ever."""
    return re.fullmatch("[0-9a-f]{40}", revision or "") is not None


def commit(source: Source) -> str | None:
    """The commit of the Hub that this node last took files of `source` from; None where they lie elsewhere."""
    if not source.is_on_hub or is_commit(source.revision):
        return source.revision if source.is_on_hub else None
    for name in ("config.json", "tokenizer_config.json"):
        found = try_to_load_from_cache(source.name, name, revision=source.revision)
        if isinstance(found, str):
            return Path(found).parent.name
    return None


def _folder(source: Source, patterns: tuple[str, ...]) -> Path:
    if "://" in source.name:
        return _from_uri(source, patterns)
    if source.is_on_hub:
        return _from_hub(source, patterns)
    if not Path(source.name).is_dir():
        raise JobError(f"{source.setting} {source.name} is no folder on this node; name one that every node sees, "
                       "an s3:// prefix or an id of the Hub")
    return Path(source.name)


def _from_hub(source: Source, patterns: tuple[str, ...]) -> Path:
    def downloaded() -> str:
        return snapshot_download(source.name, revision=source.revision, allow_patterns=list(patterns),
                                 ignore_patterns=list(_OTHER_FORMATS))

    def download(target: Path) -> None:
        target.write_text(downloaded())

    try:
        if not is_commit(source.revision):  # it may mean other files by now: ask each time
            return Path(downloaded())
        kind = "weights" if patterns is _WITH_WEIGHTS else "config"
        key = f"{kind}-{source.name}-{source.revision}".replace("/", "_")
        found = once_per_node(key, download)
        if not Path(found.read_text()).is_dir():  # the Hub's own cache was emptied
            found.unlink(missing_ok=True)
            found = once_per_node(key, download)
        return Path(found.read_text())
    except Exception as error:  # its HTTP client has exceptions of its own
        raise JobError(hub_failure(source.setting, source.name, source.revision, error)) from error


def _from_uri(source: Source, patterns: tuple[str, ...]) -> Path:
    uri = source.name
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
        entries = filesystem.get_file_info(fs.FileSelector(root.rstrip("/")))
    except (OSError, ValueError) as error:
        raise JobError(f"{source.setting} {uri} cannot be read: {first_line(error)}") from error
    files = [e for e in entries if e.type == fs.FileType.File and not fnmatchcase(e.base_name, "consolidated*")
             and any(fnmatchcase(e.base_name, pattern) for pattern in patterns)]
    if not files:
        raise JobError(f"{source.setting} {uri} holds no files of a model or tokenizer; name the prefix of a "
                       "Hugging Face folder")
    state = [uri, *sorted((file.base_name, file.size, file.mtime_ns) for file in files)]
    key = "model-" + hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def download(target: Path) -> None:
        target.mkdir()
        for file in files:
            fs.copy_files(file.path, str(target / file.base_name), source_filesystem=filesystem)

    try:
        return once_per_node(key, download)
    except OSError as error:
        raise JobError(f"{source.setting} {uri} cannot be copied to this node: {first_line(error)}") from error


def hub_failure(setting: str, name: str, revision: str | None, error: Exception) -> str:
    """One line for what went wrong when `name` was read from a folder or the Hub."""
    causes: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in causes:
        causes.append(here)
        here = here.__cause__ or here.__context__
    kinds = {type(cause).__name__ for cause in causes}
    at = f"{setting} {name}" + (f" at {revision}" if revision else "")
    instead = f"or copy it to a folder or s3:// prefix and set {setting} to that"
    if "GatedRepoError" in kinds:
        return f"{at} is gated: accept its licence on the Hub and {_token()}, {instead}"
    if "RevisionNotFoundError" in kinds:
        return (f"{setting} {name} has no revision {revision} on the Hub; set "
                f"{setting.rpartition('.')[0]}.revision to one of its commits, branches or tags")
    if "RepositoryNotFoundError" in kinds:
        return (f"{at} is neither a folder here nor a repository that the Hub shows to this job; correct the name "
                f"or, if it is private, {_token()}")
    if kinds & _UNREACHABLE:
        return (f"{at} is not on this node and the Hub cannot be reached; give the nodes a way to it or a mirror "
                f"(HF_ENDPOINT), {instead}")
    return f"{at}: {first_line(error)}"


def _token() -> str:
    """What to do for a token, by whether there is one."""
    if get_token() is None:
        return ("give the job a token that may read it: ray.hf_token_secret names a Kubernetes Secret with one, "
                "outside of a cluster HF_TOKEN holds it; this job has none")
    return "give the job another token (ray.hf_token_secret, HF_TOKEN): the one that it has may not read it"


_UNREACHABLE = {"LocalEntryNotFoundError", "ConnectError", "ConnectionError", "ConnectTimeout", "ReadTimeout",
                "RemoteProtocolError", "OfflineModeIsEnabled"}
