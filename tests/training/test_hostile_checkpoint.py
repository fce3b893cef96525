"""Checkpoints from a bucket that others write to: nothing of them runs when a training resumes, or is exported."""

import io
import os
import pickle
import zlib
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ranks
import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorProperties, TensorStorageMetadata

from training import checkpoint, model, step
from training.checkpoint import DamagedError, FileCheck
from training.checkpoint_files import PlainValuesPlanner, ShardReader, read_metadata
from training.checkpointing import Checkpoints
from training.config import CheckpointConfig, ModelConfig, OptimizerConfig, TrainConfig
from training.errors import JobError
from training.export import export
from training.storage import RunFolder

TRAINING = TrainConfig(model=ModelConfig(weights="random", architecture=ranks.QWEN2))


class Runs:
    """What an attacker writes: pickle calls it when it is read."""

    def __init__(self, call, *arguments):
        self._call, self._arguments = call, arguments

    def __reduce__(self):
        return self._call, self._arguments


def hostile(kind, mark):
    """A pickle that makes the file `mark` when it is read without care."""
    return {
        "os.system": lambda: pickle.dumps(Runs(os.system, f"touch {mark}")),
        "open": lambda: pickle.dumps(Runs(open, mark, "w")),
        "eval": lambda: pickle.dumps(Runs(eval, f"open({mark!r}, 'w')")),
        "inside": lambda: pickle.dumps({"model.x": [Runs(os.system, f"touch {mark}")]}),
        # By hand: names that have a dot, and so lead from an allowed module to another.
        "dotted": lambda: b"\x80\x04\x8c\x07pathlib\x8c\x09os.system\x93\x8c" + bytes([len(f"touch {mark}")])
        + f"touch {mark}".encode() + b"\x85R.",
        "by name": lambda: f"cos\nsystem\n(S'touch {mark}'\ntR.".encode(),
        "an attribute": lambda: (f"cbuiltins\ngetattr\n(cpathlib\nPosixPath\nS'touch'\ntR(cpathlib\nPosixPath\n"
                                 f"(S'{mark}'\ntRtR.").encode(),
        "cut short": lambda: pickle.dumps(Runs(os.system, f"touch {mark}"))[:-3],
        "endless": lambda: b"\x80\x04" + b"]" * 100_000 + b".",
        "no pickle": lambda: b"\x00" * 100,
        "another thing": lambda: pickle.dumps({"a": 1}),
    }[kind]()


KINDS = ["os.system", "open", "eval", "inside", "dotted", "by name", "an attribute", "cut short", "endless",
         "no pickle", "another thing"]


def plant(storage, payload):
    """A run whose one checkpoint is complete, checksums and all, and has `payload` as its metadata."""
    folder = RunFolder(str(storage), "run")
    files = {".metadata": payload, "__0_0.distcp": b"x"}
    for name, data in files.items():
        path = storage / "run" / checkpoint.checkpoint_path(3) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    checkpoint.complete(folder, 3, {n: FileCheck(len(d), f"{zlib.crc32(d):08x}") for n, d in files.items()})
    return folder


class AsPython311(pickle.Pickler):
    """Writes members of enums as Python 3.11.0 to 3.11.3 do."""

    def reducer_override(self, obj):
        return (getattr, (type(obj), obj.name)) if isinstance(obj, Enum) else NotImplemented


def as_python_313(text):
    return text.replace(b"cpathlib\n", b"cpathlib._local\n")


@pytest.mark.parametrize("rewritten", [bytes, as_python_313], ids=["3.11", "3.11 and 3.13"])
def test_what_another_python_wrote_is_read(rewritten):
    tensor = TensorStorageMetadata(TensorProperties(), torch.Size([2]), [])
    written = io.BytesIO()
    AsPython311(written, protocol=3).dump(Metadata({"model.x": tensor}, storage_meta=StorageMeta(Path("run"))))
    text = rewritten(written.getvalue())
    assert b"getattr" in text
    assert (b"pathlib._local" in text) is (rewritten is as_python_313)
    found = read_metadata(io.BytesIO(text), ".metadata").state_dict_metadata["model.x"]
    assert found == tensor


@pytest.mark.parametrize("kind", KINDS)
def test_export_refuses_a_pickle_that_would_run(tmp_path, kind):
    mark = str(tmp_path / "owned")
    folder = plant(tmp_path, hostile(kind, mark))
    with pytest.raises(JobError, match="is refused"):
        export(folder, None, TRAINING, tmp_path / "out")
    assert not os.path.exists(mark)
    assert not (tmp_path / "out").exists()


def test_the_pickles_of_this_file_would_run(tmp_path):
    mark = str(tmp_path / "owned")
    for kind in ("os.system", "open", "eval", "inside", "by name"):
        pickle.loads(hostile(kind, mark))
        os.remove(mark)


def test_a_value_that_is_no_tensor_is_plain(tmp_path):
    mark = str(tmp_path / "owned")
    item = cast(Any, SimpleNamespace(storage_index=SimpleNamespace(fqn="optimizer.x")))
    torch.save({"a": Runs(os.system, f"touch {mark}")}, data := io.BytesIO())
    data.seek(0)
    with pytest.raises(DamagedError, match=r"optimizer\.x of the checkpoint is refused"):
        PlainValuesPlanner().load_bytes(item, data)
    assert not os.path.exists(mark)


def test_files_outside_of_the_checkpoint_are_not_read(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = plant(tmp_path, hostile("another thing", ""))
    for name in ("../../../secret", str(tmp_path / "secret"), "../../other"):
        files = {name: FileCheck(6, f"{zlib.crc32(b'secret'):08x}")}
        with pytest.raises(OSError, match="lacks 1 of 1 files"):
            checkpoint.complete(folder, 3, files)
        folder.write_json(f"{checkpoint.checkpoint_path(3)}/complete.json", {
            "step": 3, "files": {name: {"bytes": 6, "crc32": files[name].crc32}}})
        with pytest.raises(DamagedError, match="is missing"):
            ShardReader(folder, checkpoint.read_record(folder, 3))


def resume(storage):
    """What a training says that finds the checkpoint."""
    torch.manual_seed(5)
    trained = model.CausalLMWithLoss(model.AutoModelForCausalLM.from_config(model.read_config(TRAINING.model)))
    optimizer = step.make_optimizer(trained, OptimizerConfig())
    try:
        return Checkpoints(RunFolder(storage, "run"), CheckpointConfig(), trained.model, optimizer).resume().step
    except JobError as error:
        return str(error)


@pytest.mark.long
def test_a_training_that_resumes_runs_none_of_it_and_says_so(tmp_path):
    mark = str(tmp_path / "owned")
    plant(tmp_path, hostile("os.system", mark))
    (said,) = ranks.run(1, resume, str(tmp_path))
    assert "all are damaged" in said
    assert not os.path.exists(mark)
