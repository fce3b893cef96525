"""`eagleray diagnose`: for a person or for a machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from ops.diagnose.collect import NOT_ASKED, collect, documents, write_bundle
from ops.diagnose.evidence import Document
from ops.diagnose.finding import INFERRED, LIKELY, STATED, Finding
from ops.diagnose.judge import Diagnosis, diagnose
from ops.diagnose.redaction import Redactor
from ops.kube import connect
from settings import Settings

EXIT_CODES = {"healthy": 0, "fault": 1, "unknown": 4}
_STYLES = {"healthy": "bold green", "fault": "bold red", "unknown": "bold yellow"}
_SURE = ((STATED, "stated"), (INFERRED, "inferred"), (LIKELY, "likely"))


def run(documents: Sequence[Document], output: Literal["screen", "json"], console: Console) -> int:
    """Show the diagnosis of some documents; the exit code of the command."""
    found = diagnose(documents)
    if output == "json":
        console.file.write(json.dumps(found.to_json(), indent=1) + "\n")
    else:
        show(found, console)
    return EXIT_CODES[found.verdict]


def run_live(settings: Settings, output: Literal["screen", "json"], console: Console, bundle: Path | None = None,
             addresses: Literal["kept", "hidden"] = "kept") -> int:
    """Ask the cluster and the stacks, keep that as a bundle if one is wanted, and diagnose it.

    Raises:
        KubeError, NothingToDoError: where there is no cluster to ask.
    """
    texts = collect(connect(settings.ray.namespace), settings.name, settings.region)
    said = Console(stderr=True)
    for line in texts.get(NOT_ASKED, "").splitlines():
        said.print(escape(f"not collected: {line.removeprefix('# ')}"), highlight=False, soft_wrap=True)
    if bundle is not None:
        redactor = Redactor(addresses)
        write_bundle(texts, bundle, redactor)
        said.print(escape(f"{bundle}: {len(texts)} parts; taken out: {redactor.told()}"), highlight=False,
                   soft_wrap=True)
    return run(documents(texts), output, console)


def show(found: Diagnosis, console: Console) -> None:
    """Verdict, then each finding: cause, fix, what it explains, and the lines it was judged by."""
    console.print(f"diagnosis: [{_STYLES[found.verdict]}]{found.verdict}[/]", highlight=False)
    for number, finding in enumerate(found.findings, start=1):
        console.print()
        title = f"{number}. {finding.kind} ({sureness(finding)})" if found.verdict == "fault" else finding.kind
        console.print(f"[bold]{escape(title)}[/]", highlight=False)
        _block(console, "cause", finding.cause, "red")
        _block(console, "fix" if found.verdict == "fault" else "next", finding.fix, "green")
        if finding.consequences:
            _block(console, "explains", ", ".join(finding.consequences), "cyan")
        for quote in finding.quoted():
            where = f"{quote['source']}:{quote['line']}"
            console.print(Padding(f"[dim]{escape(where)}[/] "
                                  f"{escape(quote['text'][:200])}", (0, 0, 0, 4)), highlight=False)


def sureness(finding: Finding) -> str:
    """Its confidence in a word."""
    return next((word for least, word in _SURE if finding.confidence >= least), "undecided")


def _block(console: Console, name: str, text: str, style: str) -> None:
    console.print(Padding(f"[{style}]{name}:[/] {escape(text)}", (0, 0, 0, 2)), highlight=False)
