"""`eagleray transport`: over which wire the bytes of a job went, from the logs of its ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ops.errors import NothingToDoError
from training.transport import RankTransport, Verdict, read_logs, verdict
from training.transport_membership import in_words
from training.transport_reader import files_below

EXIT_CODES = {"efa": 0, "tcp": 3, "error": 4, "unproven": 5}
_STYLES = {"efa": "bold green", "tcp": "bold red", "error": "bold red", "unproven": "bold yellow"}


def judge(names: Sequence[str], ranks: int | None) -> Verdict:
    """The verdict on files, folders or, for `-`, standard input.

    Raises:
        NothingToDoError: a name leads nowhere or cannot be read.
    """
    logs: list[Path | IO[Any]] = []
    for name in names:
        logs += [sys.stdin.buffer] if name == "-" else _files(name)
    try:
        return verdict(read_logs(logs), ranks)
    except OSError as error:
        raise NothingToDoError(f"{error.filename or 'standard input'}: {error.strerror or error}") from None


def _files(name: str) -> list[Path]:
    path = Path(name)
    if not path.exists():
        raise NothingToDoError(f"{name}: no such file or folder; give NCCL's logs, a folder of them, or - for "
                               "standard input")
    files = files_below(path)
    if not files:
        raise NothingToDoError(f"{name}: an empty folder; set NCCL_DEBUG_FILE={name}/nccl.%h.%p.log in the job")
    return files


def show(found: Verdict, console: Console) -> None:
    """The verdict, its reasons with their mends, and the ranks, alike ones in one row."""
    console.print(f"transport: [{_STYLES[found.verdict]}]{found.verdict}[/]", highlight=False)
    for reason in found.reasons:
        console.print(f"\n[bold]{reason.code}[/]", highlight=False)
        console.print(Padding(escape(reason.detail), (0, 0, 0, 2)), highlight=False)
        console.print(Padding(f"[green]mend:[/] {escape(reason.mend)}", (0, 0, 0, 2)), highlight=False)
    if found.ranks:
        console.print()
        console.print(_table(found.ranks))


def _table(ranks: Sequence[RankTransport]) -> Table:
    alike: dict[tuple[str, ...], list[RankTransport]] = {}
    for rank in ranks:
        gdr = {True: "yes", False: "no", None: "-"}[rank.gdr]
        row = (rank.provider or "-", rank.network or "-", ", ".join(rank.channels) or "-", gdr)
        alike.setdefault((*row, str(rank.rank is None)), []).append(rank)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("ranks", "on", "provider", "network", "channels", "GDR"):
        table.add_column(title, overflow="fold")
    for row, members in alike.items():
        known = [member.rank for member in members if member.rank is not None]
        hosts = sorted({member.host for member in members})
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} nodes"
        who = in_words(known).split(" ", 1)[1] if known else f"unknown ({len(members)})"
        table.add_row(*(escape(cell) for cell in (who, where, *row[:-1])))
    return table
