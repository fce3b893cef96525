"""At the end of a run that succeeded: its model as a Hugging Face folder, in `<run>/model/`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import ray
from ray.exceptions import RayError

from training.config import TrainJob
from training.errors import first_line
from training.export import export
from training.storage import RunFolder

MODEL = "model"
_LIMIT_S = 3600


def export_at_end(job: TrainJob) -> dict[str, str | None] | None:
    """Write the model of the newest checkpoint as `training.export` says, on one of Ray's nodes.

    Returns:
        For summary.json: `uri` of the model, or the `reason` why there is none; None where none is wanted. A
        failure is told on stderr: the training has succeeded and its checkpoint is there.
    """
    if job.training.export == "none":
        return None
    # Not here on the head, whose disk is too small for a checkpoint with its optimizer. It offers Ray no CPU.
    task = ray.remote(num_cpus=1, max_retries=1)(write_model)
    uri, reason = None, None
    try:
        uri, reason = ray.get(task.remote(job.model_dump(mode="json")), timeout=_LIMIT_S)
    except RayError as error:
        reason = first_line(error)
    if reason is not None:
        run = f"{job.placement.storage}/{job.name}"
        print(f"training.export {job.training.export}: no model was written: {reason}. "
              f"`eagleray export {run} --out FOLDER` makes it from the checkpoint", file=sys.stderr, flush=True)
    return {"uri": uri, "reason": reason}


def write_model(job: dict[str, object]) -> tuple[str | None, str | None]:
    """Write `<run>/model/` in the place of an earlier one. Returns its URI, or None and the reason.

    At no time is more of it in memory than one file of `export`. config.json comes last, without which nobody
    takes the folder for a model.
    """
    parsed = TrainJob.model_validate(job)
    try:
        folder = RunFolder(parsed.placement.storage, parsed.name)
        with tempfile.TemporaryDirectory(prefix="eagleray-model-") as scratch:
            made = Path(scratch, MODEL)
            export(folder, None, parsed.training, made, parsed.training.export)
            folder.remove(MODEL)
            files = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
            for file in sorted(files, key=lambda file: file.name == "config.json"):
                folder.put(made / file, f"{MODEL}/{file}")
        return f"{folder.uri}/{MODEL}", None
    except Exception as error:  # whatever it is, the training itself has succeeded
        return None, first_line(error)
