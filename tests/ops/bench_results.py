"""What a run would leave in its storage."""

import json
from pathlib import Path

SPEED = {"efa": 4000.0, "tcp": 2000.0}


def leave(folder: Path, tokens_per_second: float, verdict: str = "efa", steps: int = 12) -> Path:
    """summary.json and metrics.jsonl of a run of 1000 tokens a step whose first two steps crawl."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for step in range(1, steps + 1):
        speed = tokens_per_second * (0.1 if step <= 2 else 1 + 0.01 * (step % 3 - 1))
        rows.append({"step": step, "loss": 8.0, "grad_norm": 1.0, "learning_rate": 1e-3,
                     "tokens_per_second": speed, "step_seconds": 1000 / speed})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps({
        "status": "succeeded", "steps": steps, "transport": {"verdict": verdict, "reasons": [], "ranks": []}}))
    (folder / "checkpoints").mkdir(exist_ok=True)
    return folder
