"""The code bundle: a Python package and the job's settings in one ConfigMap, named after their content."""

from __future__ import annotations

import io
import json
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cdk8s
import cdk8s_plus_28 as kplus
from constructs import Construct

from training.config import digest

# A ConfigMap may hold 1 MiB. But `kubectl apply` also writes the whole object into an annotation, and all
# annotations together may have 256 KiB, so that is the limit; a little is kept for what the API server adds.
_LIMIT_BYTES = 256 * 1024 - 1024


class BundleTooLargeError(ValueError):
    """The package does not fit into a ConfigMap; the message names its largest file."""


@dataclass(frozen=True)
class CodeBundle:
    """Text files by their path in the job's working directory, such as `training/train.py`.

    Raises:
        BundleTooLargeError: at construction.
        ValueError: two paths that become the same key.
    """

    prefix: str
    files: Mapping[str, str]

    def __post_init__(self) -> None:
        if len({_key(path) for path in self.files}) < len(self.files):
            raise ValueError(f"two files of the code bundle have the same name with dots for slashes: "
                             f"{', '.join(sorted(self.files))}")
        size = _annotation_bytes(self.data)
        if size > _LIMIT_BYTES:
            largest = max(self.files, key=lambda path: len(self.files[path]))
            raise BundleTooLargeError(
                f"the code bundle has {size} bytes as JSON, and kubectl apply takes {_LIMIT_BYTES}; its largest "
                f"file is {largest} ({len(self.files[largest].encode())} bytes): make that smaller, or bake the "
                "package into the image")

    @property
    def name(self) -> str:
        """`<prefix>-code-<hash>`: other content, other name."""
        return f"{self.prefix}-code-{digest(dict(self.files))}"

    @property
    def data(self) -> dict[str, str]:
        """The ConfigMap's `data`: keys may have no slashes, so `training/train.py` is `training.train.py`."""
        return {_key(path): text for path, text in self.files.items()}

    @property
    def items(self) -> list[dict[str, str]]:
        """The `items` of a ConfigMap volume that give every file its path back."""
        return [{"key": _key(path), "path": path} for path in self.files]


class CodeConfigMap(kplus.ConfigMap):
    """The bundle as an immutable ConfigMap: a running job never sees other code than it was submitted with."""

    def __init__(self, scope: Construct, construct_id: str, *, namespace: str, bundle: CodeBundle) -> None:
        super().__init__(scope, construct_id, immutable=True, data=bundle.data,
                         metadata=cdk8s.ApiObjectMetadata(name=bundle.name, namespace=namespace))


def package_files(package: Path) -> dict[str, str]:
    """Sources (without comments) and data of a package (*.py, *.json), by path from the folder that holds it."""
    found = sorted(path for path in package.rglob("*") if path.suffix in (".py", ".json"))
    texts = {path: path.read_text(encoding="utf-8") for path in found}
    return {path.relative_to(package.parent).as_posix(): without_comments(text) if path.suffix == ".py" else text
            for path, text in texts.items()}


def without_comments(source: str) -> str:
    """The same program without comments and docstrings, which would fill a third of the bundle.

    Each statement stays in its line, so that a traceback from a pod is true of the repository as well. And a
    better comment makes no other job.
    """
    lines, begins = source.split("\n"), True
    cuts: list[tuple[tokenize.TokenInfo, str]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, after in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == tokenize.COMMENT:
            cuts.append((token, ""))
        elif token.type == tokenize.STRING and begins and after.type in (tokenize.NEWLINE, tokenize.COMMENT):
            cuts.append((token, '""'))  # a body may have nothing else
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for token, instead in reversed(cuts):
        (first, start), (last, end) = token.start, token.end
        lines[first - 1] = (lines[first - 1][:start] + instead + lines[last - 1][end:]).rstrip()
        lines[first:last] = [""] * (last - first)
    return "\n".join(lines)


def _key(path: str) -> str:
    return path.replace("/", ".")


def _annotation_bytes(data: Mapping[str, Any]) -> int:
    """Length of `data` as kubectl writes it: JSON in which <, > and & become six bytes each."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode()) + 5 * sum(text.count(char) for char in "<>&")
