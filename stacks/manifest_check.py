"""The rules for manifests, held against what this app has just synthesized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k8s.rules import Manifest, check
from k8s.rules.nodes import around_app


def wrong_manifests(cdk_out: Path, manifests: Sequence[dict[str, Any]]) -> str | None:
    """What is wrong with the manifests on the nodes of the templates in `cdk_out`, a line each; None if nothing."""
    found = check([Manifest(body) for body in manifests], around_app(cdk_out))
    if not found:
        return None
    many = "a manifest that would not work" if len(found) == 1 else f"{len(found)} faults in the manifests"
    return "\n".join([f"{many} (docs/check.md says why of each rule):", *map(str, found)])
