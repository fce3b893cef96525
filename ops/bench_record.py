"""bench.json: what a comparison consists of and how far it has come, so that an interrupted one can go on."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ops.bench_job import Shape
from ops.errors import NothingToDoError
from ops.result_folder import held
from ops.run_folder import read_json

RECORD = "bench.json"
Kind = Literal["measured", "rehearsal"]


@dataclass
class Record:
    """`job` names the synthesized job with the hash of its content; `facts` are the back end's own, by run."""

    kind: Kind
    job: str
    where: str
    shape: Shape
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:6])
    done: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    def begin(self, out: Path) -> None:
        """Take over `out`: what an earlier comparison left there goes, unless this is that one going on."""
        if not (out / RECORD).is_file() or _read(out / RECORD).id != self.id:
            shutil.rmtree(out / "runs", ignore_errors=True)
            (out / "report.html").unlink(missing_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        self.save(out)

    def save(self, out: Path) -> None:
        """Write bench.json whole: a reader sees the old one or the new one."""
        new = out / f".{RECORD}.new"
        new.write_text(json.dumps(asdict(self), indent=2) + "\n")
        new.replace(out / RECORD)


@contextmanager
def opened(out: Path, wanted: Record) -> Iterator[Record]:
    """`out` is ours: yields the record of an interrupted comparison of the same there, or `wanted`.

    A rehearsal always starts afresh. A finished comparison that was measured is never overwritten. Nothing is
    written before `Record.begin`.

    Raises:
        NothingToDoError: if `out` holds something else, or another command is at work there.
    """
    with held(out):
        yield _to_go_on_with(out, wanted) or wanted


def _to_go_on_with(out: Path, wanted: Record) -> Record | None:
    if out.exists() and not out.is_dir():
        raise NothingToDoError(f"--out {out}: is a file; choose a folder")
    if not out.is_dir() or not any(out.iterdir()):
        return None
    if not (out / RECORD).is_file():
        raise NothingToDoError(f"--out {out}: holds something else than a comparison; choose another")
    found = _read(out / RECORD)
    if found.kind == "rehearsal" and wanted.kind == "rehearsal":
        return None
    if found.kind == "rehearsal" or found.result is not None:
        what = "a rehearsal" if found.kind == "rehearsal" else "a finished comparison"
        raise NothingToDoError(f"--out {out}: holds {what}; name another folder, or remove it")
    if (found.kind, found.job, found.where, found.shape) != (wanted.kind, wanted.job, wanted.where, wanted.shape):
        raise NothingToDoError(
            f"--out {out}: holds an unfinished comparison of {found.job} on {found.where} ({found.shape.repeats} "
            f"runs a wire, {found.shape.steps} steps, {found.shape.warm_up} to warm up, {found.shape.minutes} "
            "minutes); go on with that, name another folder, or remove it")
    return found


def _read(path: Path) -> Record:
    found = read_json(path)
    try:
        return Record(**{**found, "shape": Shape(**found["shape"])})
    except (TypeError, KeyError):
        raise NothingToDoError(f"{path}: not a comparison of this version; name another folder, or remove it") \
            from None

