"""Data in and models out: token files of a corpus, and a Hugging Face folder of a checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ops.errors import NothingToDoError


def tokenize_files(data: dict[str, Any], out: Path) -> dict[str, Any]:
    """Write the token files of `data` (a DataConfig's fields) into `out`. Returns the contents of its index.json.

    Raises:
        NothingToDoError: if `out` exists, or file or row cannot be used.
    """
    from training.config import DataConfig, ModelConfig
    from training.data import tokenise
    from training.data_files import find_files
    from training.errors import JobError
    from training.tokenizer import open_tokenizer

    if out.exists():
        raise NothingToDoError(f"{out} exists already; remove it or choose another folder")
    if data["kind"] not in ("text", "jsonl", "parquet", "hub"):
        raise NothingToDoError(f"--kind {data['kind']} cannot be tokenised; use text, jsonl, parquet or hub")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        config = DataConfig(**data)
        name, tokenizer, _ = open_tokenizer(config, ModelConfig())
        written = tokenise(partial, find_files(config), config, tokenizer, name)
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"--{part}: " for part in first["loc"])
        raise NothingToDoError(where + first["msg"].removeprefix("Value error, ")) from None
    except JobError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise NothingToDoError(str(error)) from None
    partial.rename(out)
    return written


def export_run(run: str, out: Path, step: int | None, dtype: str) -> int:
    """Export a checkpoint of the run in folder or URI `run` into `out`. Returns its step.

    Raises:
        NothingToDoError: if there is no such run or checkpoint, or it does not match its model.
    """
    from training.config import TrainConfig
    from training.errors import JobError
    from training.export import export
    from training.storage import RunFolder, absolute

    if dtype not in ("bf16", "fp32"):
        raise NothingToDoError(f"--dtype {dtype} is unknown; use bf16 or fp32")
    storage, _, name = absolute(run).rpartition("/")
    try:
        folder = RunFolder(storage, name)
        noted = folder.read_json("run.json") or {}
        if "training" not in noted:
            raise NothingToDoError(f"{run} is not a run's folder: it has no run.json, or one without the model")
        return export(folder, step, TrainConfig.model_validate(noted["training"]), out, dtype)
    except JobError as error:
        raise NothingToDoError(str(error)) from None
