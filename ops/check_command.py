"""`eagleray check`: what is wrong with Kubernetes manifests, before a cluster sees them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from k8s.rules import Finding, Surroundings, check
from k8s.rules.nodes import around_app, around_files
from ops.console import printable
from ops.errors import NothingToDoError
from ops.manifest_files import Documents, is_cdk_out, read


def findings(names: list[str]) -> list[Finding]:
    """Findings on files, folders and cdk.outs; each cdk.out with the nodes of its own templates.

    Raises:
        NothingToDoError: something cannot be read.
    """
    apps = [name for name in names if name != "-" and is_cdk_out(Path(name))]
    files = [name for name in names if name not in apps]
    found = [] if not files else _of(read(files), around_files())
    for app in apps:
        found += _of(read([app]), _app(Path(app)))
    return found


def _of(documents: Documents, around: Surroundings) -> list[Finding]:
    twice = [Finding("repeated-key", file, Path(file).name, key,
                     "is there twice in one mapping" + (f" (line {line})" if line else ""), "keep one")
             for file, key, line in documents.repeated]
    return twice + check(documents.manifests, around)


def _app(cdk_out: Path) -> Surroundings:
    try:
        return around_app(cdk_out)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise NothingToDoError(f"{cdk_out}: templates that cdk synth would not write "
                               f"({type(error).__name__}); run cdk synth again") from None


def text(found: list[Finding], form: Literal["lines", "json"]) -> str:
    """One line a finding, with its file where there are several; or a JSON list of objects, keys as in Finding."""
    if form == "json":
        return json.dumps([asdict(finding) for finding in found], indent=1) + "\n"
    several = len({finding.file for finding in found}) > 1
    lines = ((f"{finding.file}: " if several else "") + str(finding) for finding in found)
    return "".join(f"{printable(line)}\n" for line in lines)
