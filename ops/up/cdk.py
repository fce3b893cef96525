"""The cdk command line: run in the foreground, with its own screen and its own questions."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ops import processes
from ops.context import Context
from ops.errors import NothingToDoError
from ops.interrupts import Interrupts

_SECONDS_TO_END = 5


def require_cdk() -> None:
    """Raise NothingToDoError where `cdk deploy` could not even start."""
    if shutil.which("cdk") is None:
        raise NothingToDoError("cdk is not on the PATH; run make setup once, then . .venv/bin/activate")
    if not Path("cdk.json").is_file():
        raise NothingToDoError("there is no cdk.json here; run this in the project's own folder")


def deploy(context: Context, extra: Sequence[str], signals: Interrupts) -> int:
    """`cdk deploy --all` with these settings; its exit code. `extra` are options of cdk that it is handed."""
    return _run(["deploy", "--all", *_context(context), *extra], signals)


def destroy(context: Context, signals: Interrupts) -> int:
    """`cdk destroy --all`, unasked; its exit code."""
    return _run(["destroy", "--all", "--force", *_context(context)], signals)


def command_line(verb: str, context: Context) -> str:
    """The command for a person to copy."""
    config, overrides = f"-c config={context.config}", f'-c set="{context.overrides}"'
    return f"cdk {verb} --all {config} {overrides}" if context.overrides else f"cdk {verb} --all {config}"


def _context(context: Context) -> list[str]:
    told = ["-c", f"config={context.config}"]
    return [*told, "-c", f"set={context.overrides}"] if context.overrides else told


def _run(arguments: Sequence[str], signals: Interrupts) -> int:
    # In our own process group, so that it may ask questions; found by the marker, should it outlive its starter.
    marker = f"up-{uuid.uuid4().hex}"
    process = None
    try:
        process = subprocess.Popen(["cdk", *arguments], env={**os.environ, processes.MARKER: marker})
        return process.wait()
    finally:
        # Without a process, a signal may have come between its start and its name.
        if process is None or process.poll() is None:
            signals.clean_up_undisturbed()
            _end(process, marker)


def _end(process: subprocess.Popen[bytes] | None, marker: str) -> None:
    if process is not None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    # cdk is a script that starts Node, which starts the app. They share our session: only what is marked ends.
    deadline = time.monotonic() + _SECONDS_TO_END
    while (left := processes.marked(marker)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
