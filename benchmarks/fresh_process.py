"""A measurement in a process of its own, so that none inherits another's memory, caches or process group."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

_MARK = "result "


def tell(result: Mapping[str, Any]) -> None:
    """Print what this process found, for `result_of` in the other one."""
    print(f"\n{_MARK}{json.dumps(result)}", flush=True)


def result_of(
    command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What a process told; {"error": why} if it told nothing, or was not done in time.

    Args:
        command: the process.
        timeout_s: until it is killed.
        environment: variables beside, and instead of, this process's.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s,
                              env={**os.environ, **(environment or {})})
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {timeout_s:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if lines:
        return json.loads(lines[-1].removeprefix(_MARK))
    return {"error": (done.stderr.strip().splitlines() or ["no output"])[-1]}
