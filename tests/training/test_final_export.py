"""`training.export`: the model in the run's folder at the end, or why it is not there."""

from pathlib import Path

import pytest
import ranks
import torch
from ray.exceptions import GetTimeoutError
from test_export import save_step
from transformers import AutoModelForCausalLM

from training import final_export, storage
from training.config import TrainConfig, TrainJob
from training.final_export import export_at_end, write_model
from training.storage import RunFolder
from training.summary import summarise


@pytest.fixture
def no_cluster(monkeypatch):
    """Ray's tasks run here, at once."""
    class Here:
        def __init__(self, function):
            self.remote = function

    monkeypatch.setattr(final_export.ray, "remote", lambda **_: Here)
    monkeypatch.setattr(final_export.ray, "get", lambda result, timeout: result)


@pytest.mark.usefixtures("no_cluster")
def test_the_model_lies_in_the_run_with_the_logits_that_were_saved(tmp_path, capsys):
    (expected,) = ranks.run(1, save_step, str(tmp_path), ranks.QWEN2)
    job = TrainJob.model_validate(ranks.job(tmp_path, export="fp32"))
    stale = tmp_path / "tiny" / "model" / "model-00001-of-00002.safetensors"
    stale.parent.mkdir()
    stale.touch()
    exported = export_at_end(job)
    out = tmp_path / "tiny" / "model"
    assert capsys.readouterr().err == ""
    assert exported == {"uri": str(out), "reason": None}
    assert not stale.exists()
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(loaded.eval()(torch.arange(32)[None]).logits, expected)
    found = summarise(job, RunFolder(str(tmp_path), "tiny"), None, exported)
    assert (found["status"], found["model"]) == ("succeeded", exported)


@pytest.mark.usefixtures("no_cluster")
def test_a_model_that_cannot_be_written_is_told_with_the_command_that_makes_it(tmp_path, capsys):
    exported = export_at_end(TrainJob.model_validate(ranks.job(tmp_path, export="bf16")))
    assert exported == {"uri": None, "reason": f"{tmp_path}/tiny holds no complete checkpoint"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (f"training.export bf16: no model was written: {tmp_path}/tiny holds no complete checkpoint. "
                    f"`eagleray export {tmp_path}/tiny --out FOLDER` makes it from the checkpoint")


@pytest.mark.usefixtures("no_cluster")
def test_a_cluster_that_has_no_room_for_the_export_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    def never(result, timeout):
        raise GetTimeoutError(f"not done in {timeout} s")

    monkeypatch.setattr(final_export.ray, "get", never)
    exported = export_at_end(TrainJob.model_validate(ranks.job(tmp_path, export="bf16")))
    assert exported == {"uri": None, "reason": "not done in 3600 s"}


def test_config_json_comes_last(tmp_path, monkeypatch):
    ranks.run(1, save_step, str(tmp_path), ranks.QWEN2)
    copied, copy = [], storage.fs.copy_files

    def watched(source, target, *filesystems):
        copied.append(Path(source).name)
        copy(source, target, *filesystems)

    monkeypatch.setattr(storage.fs, "copy_files", watched)
    assert write_model(ranks.job(tmp_path, export="bf16")) == (f"{tmp_path}/tiny/model", None)
    assert {"model.safetensors", "generation_config.json"} < set(copied)
    assert copied[-1] == "config.json"


def test_nothing_is_written_unless_it_is_wanted_and_the_run_keeps_its_name(tmp_path):
    assert export_at_end(TrainJob.model_validate(ranks.job(tmp_path))) is None
    assert TrainConfig().digest() == TrainConfig(export="fp32").digest()
