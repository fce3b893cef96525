"""Kubernetes objects out of files from anybody's hands: YAML, JSON, folders, a cdk.out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from k8s.rules import Manifest
from ops.errors import NothingToDoError

# Ten times what the API server takes as one object, and enough for a file of CRDs.
_MOST_BYTES = 16 * 2**20
_MOST_DEPTH = 100
# Values of a document with its aliases followed; a megabyte of manifests has some ten thousand.
_MOST_VALUES = 500_000
_MOST_FILES = 2000
_SUFFIXES = (".yaml", ".yml", ".json")
# Where a checkout or a cdk.out keeps other things than manifests.
_SKIPPED = {".git", ".venv", "node_modules", "__pycache__"}


class UnreadableFileError(NothingToDoError):
    """A file or folder that cannot be read as manifests; the message names it."""


@dataclass
class Documents:
    """Objects with their files, and keys that a mapping has twice (file, key, line)."""

    manifests: list[Manifest] = field(default_factory=list)
    repeated: list[tuple[str, str, int]] = field(default_factory=list)


def read(names: list[str]) -> Documents:
    """The objects of files, folders and, for `-`, standard input; `List` kinds taken apart.

    Raises:
        UnreadableFileError: a name leads nowhere, a file is no YAML or JSON, or nothing is in it.
    """
    found = Documents()
    for name in names:
        if name == "-":
            _document(found, "standard input", sys.stdin.buffer.read(_MOST_BYTES + 1), ".yaml", named=True)
            continue
        path = Path(name)
        files = _files(path)
        before = len(found.manifests)
        for file in files:
            _document(found, str(file), _bytes(file), file.suffix, named=file == path)
        if len(found.manifests) == before:
            raise UnreadableFileError(f"{name}: holds no Kubernetes object; a manifest has apiVersion and kind")
    return found


def is_cdk_out(path: Path) -> bool:
    """Whether a folder is what `cdk synth` wrote."""
    try:
        return (path / "cdk.out").is_file()
    except OSError:  # a name too long for this file system
        return False


def _files(path: Path) -> list[Path]:
    try:
        if not path.exists():
            raise UnreadableFileError(f"{path}: no such file or folder; give manifests, or a cdk.out")
        if not path.is_dir():
            return [path]
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if is_cdk_out(path):
        path = path / "manifests"
        if not path.is_dir():
            raise UnreadableFileError(f"{path}: no such folder; cdk synth of this app writes it")
    found = []
    for file in sorted(path.rglob("*")):
        if file.suffix not in _SUFFIXES or _SKIPPED & set(file.relative_to(path).parts) or file.is_dir():
            continue
        if not file.resolve().is_relative_to(path.resolve()):
            raise UnreadableFileError(f"{file}: a link that leads out of {path}; name that file itself")
        found.append(file)
        if len(found) > _MOST_FILES:
            raise UnreadableFileError(f"{path}: more than {_MOST_FILES} files; name a folder further down")
    if not found:
        raise UnreadableFileError(f"{path}: holds no *.yaml, *.yml or *.json")
    return found


def _bytes(file: Path) -> bytes:
    if not file.is_file():
        raise UnreadableFileError(f"{file}: neither a file nor a folder")
    try:
        with file.open("rb") as opened:
            return opened.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableFileError(f"{file}: {error.strerror or error}") from None


def _document(found: Documents, file: str, data: bytes, suffix: str, *, named: bool) -> None:
    """Add the objects of one file. One of a folder may hold other things (`named` False), which are left out."""
    if len(data) > _MOST_BYTES:
        raise UnreadableFileError(f"{file}: larger than {_MOST_BYTES // 2**20} MiB, which no manifest is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{file}: not UTF-8 (byte {error.start}); save it as UTF-8") from None
    repeated: list[tuple[str, int]] = []
    try:
        documents = [_json(text, repeated)] if suffix == ".json" else _yaml(text, repeated)
        for document in documents:
            _measure(document)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be parsed"
        raise UnreadableFileError(f"{file}: no YAML{place}: {problem}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error) or "too large"
        raise UnreadableFileError(f"{file}: {what}") from None
    objects = [each for document in documents for each in _objects(document)]
    if named and any(not isinstance(each, dict) for each in objects):
        raise UnreadableFileError(f"{file}: holds something that is no object; a manifest has apiVersion and kind")
    # JSON has many uses; in a folder only what names both is surely meant.
    marks = {"kind", "apiVersion"}
    kept = [each for each in objects if isinstance(each, dict)
            and (marks <= set(each) if suffix == ".json" and not named else marks & set(each))]
    found.manifests += [Manifest(each, file) for each in kept]
    found.repeated += [(file, key, line) for key, line in repeated] if kept else []


def _objects(document: Any) -> Iterator[Any]:
    if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and isinstance(
            document.get("items"), list):
        for item in document["items"]:
            yield from _objects(item)
    elif isinstance(document, list):
        yield from document  # what CDK's KubernetesManifest has
    elif document is not None:
        yield document


def _json(text: str, repeated: list[tuple[str, int]]) -> Any:
    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in found]
        repeated.extend((name, 0) for name in {name for name in names if names.count(name) > 1})
        return dict(found)

    try:
        return json.loads(text, object_pairs_hook=pairs)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON in line {error.lineno}: {error.msg}") from None


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Safe):
    """Safe YAML as Kubernetes reads it: dates stay text; keys that occur twice are noted."""

    repeated: list[tuple[str, int]]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    self.repeated.append((key.value, key.start_mark.line + 1))
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()}


def _yaml(text: str, repeated: list[tuple[str, int]]) -> list[Any]:
    _survey(text)
    loader = _Loader(text)
    loader.repeated = repeated
    documents = []
    try:
        while loader.check_data():
            documents.append(loader.get_data())
    finally:
        loader.dispose()
    return documents


def _survey(text: str) -> None:
    """Walk through the events first, which needs no stack: a deep file would exhaust that of the C parser."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MOST_DEPTH:
                raise ValueError(f"nested deeper than {_MOST_DEPTH} in line {event.start_mark.line + 1}")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _measure(document: Any) -> None:
    """Count values as if each alias were written out, without doing so."""
    sizes: dict[int, int] = {}

    def size(value: Any) -> int:
        if not isinstance(value, dict | list):
            return 1
        if id(value) not in sizes:
            sizes[id(value)] = -1
            below = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            sizes[id(value)] = 1 + sum(size(each) for each in below)
        elif sizes[id(value)] < 0:
            raise ValueError("an alias that contains itself")
        return sizes[id(value)]

    if (values := size(document)) > _MOST_VALUES:
        raise ValueError(f"its aliases unfold into {values:.1e} values; write out what is meant")
