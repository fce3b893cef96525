"""The code bundle: a Python package and the job's settings in immutable ConfigMaps named after their content."""

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

from training.config import TrainJob, digest

# Of one ConfigMap, as JSON. `kubectl apply` writes the whole object once more into an annotation, and those may
# have 256 KiB; and CloudFormation hands it to a Lambda in an event, escaped once more, for which the limit was
# 256 KiB as well until late in 2025.
_PART_BYTES = 128 * 1024
# Of all together: the template that holds them may have 1 MB.
_LIMIT_BYTES = 6 * _PART_BYTES


class BundleTooLargeError(ValueError):
    """The package does not fit into ConfigMaps; the message names its largest file."""


@dataclass(frozen=True)
class BundlePart:
    """Text files of one ConfigMap, by their path in the job's working directory."""

    prefix: str
    files: Mapping[str, str]

    @property
    def name(self) -> str:
        """`<prefix>-<hash>`: other content, other name."""
        return f"{self.prefix}-{digest(dict(self.files))}"

    @property
    def data(self) -> dict[str, str]:
        """The ConfigMap's `data`: keys may have no slashes, so `training/train.py` is `training.train.py`."""
        return {_key(path): text for path, text in self.files.items()}

    @property
    def items(self) -> list[dict[str, str]]:
        """The `items` of a volume that give every file its path back."""
        return [{"key": _key(path), "path": path} for path in self.files]


@dataclass(frozen=True)
class CodeBundle:
    """A package and the files beside it, such as `training/train.py` and `train.json`: a ConfigMap for what lies
    beside the package (what a person reads and changes), and as many as it takes for the package.

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
        sizes = {path: _json_bytes({_key(path): text}) for path, text in self.files.items()}
        largest = max(sizes, key=lambda path: sizes[path], default="")
        for size, limit in ((sizes.get(largest, 0), _PART_BYTES), (sum(sizes.values()), _LIMIT_BYTES)):
            if size > limit:
                raise BundleTooLargeError(
                    f"the code bundle has {size} bytes as JSON, and ConfigMaps in a template take {limit}; its "
                    f"largest file is {largest} ({len(self.files[largest].encode())} bytes): make that "
                    "smaller, or bake the package into the image")

    @property
    def parts(self) -> list[BundlePart]:
        """One for each ConfigMap, that of the settings first."""
        beside = {path: text for path, text in self.files.items() if "/" not in path}
        boxes: list[dict[str, str]] = [{}]
        for path in sorted(self.files.keys() - beside.keys()):
            more = {**boxes[-1], path: self.files[path]}
            if boxes[-1] and _json_bytes({_key(name): text for name, text in more.items()}) > _PART_BYTES:
                boxes.append({path: self.files[path]})
            else:
                boxes[-1] = more
        found = [BundlePart(f"{self.prefix}-settings", beside),
                 *(BundlePart(f"{self.prefix}-code", files) for files in boxes)]
        return [part for part in found if part.files]

    @property
    def volume(self) -> dict[str, Any]:
        """The volume, without its name, in which all files are together again."""
        return {"projected": {"sources": [
            {"configMap": {"name": part.name, "items": part.items}} for part in self.parts]}}


class BundleConfigMap(kplus.ConfigMap):
    """A part of the bundle as an immutable ConfigMap: a running job never sees other code than it was submitted
    with."""

    def __init__(self, scope: Construct, construct_id: str, *, namespace: str, part: BundlePart) -> None:
        super().__init__(scope, construct_id, immutable=True, data=part.data,
                         metadata=cdk8s.ApiObjectMetadata(name=part.name, namespace=namespace))


def job_bundle(prefix: str, package: Path, job: TrainJob) -> CodeBundle:
    """The package `package`, and `job` beside it as train.json."""
    return CodeBundle(prefix, {**package_files(package), "train.json": f"{job.model_dump_json(indent=2)}\n"})


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


def _json_bytes(data: Mapping[str, Any]) -> int:
    """Length of `data` as kubectl writes it: JSON in which <, > and & become six bytes each."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return len(text.encode()) + 5 * sum(text.count(char) for char in "<>&")
