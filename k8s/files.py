"""Kubernetes objects as files that a person reads and `kubectl apply -f` takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


class _Readable(yaml.SafeDumper):
    """Text of several lines as it is, below a `|`; no anchors where an object occurs twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def write_manifests(folder: Path, objects: Sequence[dict[str, Any]]) -> None:
    """Write one file an object, `01-namespace-ray.yaml` …, numbered in the order given.

    Other *.yaml of the folder are removed: a file there is an object of this synth.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.yaml"):
        old.unlink()
    for number, manifest in enumerate(objects, start=1):
        name = f"{number:02d}-{manifest['kind'].lower()}-{manifest['metadata']['name']}.yaml"
        (folder / name).write_text(to_yaml(manifest), encoding="utf-8")


def to_yaml(manifest: dict[str, Any]) -> str:
    """One object as YAML, its fields in the order they were given."""
    return yaml.dump(manifest, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=120)
