"""`eagleray tokenize` and `eagleray export` as commands: what they write, what they name, what they leave alone."""

import json

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from ops.errors import NothingToDoError
from ops.model_files import export_run, tokenize_files
from training import model, step
from training.checkpointing import Checkpoints
from training.config import TrainConfig
from training.storage import RunFolder
from training.token_files import open_folder

TINY = {"model_type": "qwen2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture
def rows(tmp_path):
    """Three rows, and a tokenizer of one token a word."""
    words = Tokenizer(models.WordLevel({"<end>": 0, "one": 1, "two": 2}, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path / "tokenizer")
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": "one", "completion": "two two"}) + "\n" for _ in range(3)))
    return file


def test_token_files_are_written_and_told(tmp_path, rows):
    from ops.commands.jobs import app

    out = tmp_path / "tokens"
    ended = CliRunner().invoke(app, ["tokenize", str(rows), "--kind", "jsonl", "--rows", "prompt",
                                     "--tokenizer", str(tmp_path / "tokenizer"), "--out", str(out)])
    assert ended.exit_code == 0, ended.output
    assert ended.output.strip() == f"12 tokens of 3 documents, of which 9 tokens count in the loss: {out}"
    assert open_folder(out).tokens.tolist() == [1, 2, 2, 0] * 3


def test_a_row_that_cannot_be_used_leaves_no_folder(tmp_path, rows):
    data = {"kind": "jsonl", "path": str(rows), "tokenizer": str(tmp_path / "tokenizer"), "rows": "text"}
    with pytest.raises(NothingToDoError, match=r"rows\.jsonl row 1 has no column text; it has prompt, completion"):
        tokenize_files(data, tmp_path / "tokens")
    assert not list(tmp_path.glob("tokens*"))
    (tmp_path / "tokens").mkdir()
    with pytest.raises(NothingToDoError, match="tokens exists already; remove it or choose another folder"):
        tokenize_files({**data, "rows": "prompt"}, tmp_path / "tokens")


@pytest.fixture
def trained(tmp_path):
    """A run's folder with a checkpoint of step 3, and the logits of its model."""
    training = TrainConfig.model_validate({"model": {"weights": "random", "architecture": TINY}})
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        torch.manual_seed(5)
        built = AutoModelForCausalLM.from_config(model.read_config(training.model))
        optimizer = step.make_optimizer(model.CausalLMWithLoss(built), training.optimizer)
        folder = RunFolder(str(tmp_path), "run")
        Checkpoints(folder, training.checkpoint, built, optimizer).save_now(3)
        folder.write_json("run.json", {"training": training.model_dump(mode="json")})
    finally:
        dist.destroy_process_group()
    return tmp_path / "run", logits_of(built)


def logits_of(built):
    with torch.no_grad():
        return built.eval()(torch.arange(32)[None]).logits


def test_export_writes_the_model_of_a_run_and_tells_the_step(tmp_path, trained):
    from ops.commands.jobs import app

    run, logits = trained
    out = tmp_path / "model"
    command = ["export", str(run), "--out", str(out), "--dtype", "fp32"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    assert ended.output.strip() == f"step 3: {out}"
    assert torch.equal(logits_of(AutoModelForCausalLM.from_pretrained(out)), logits)
    with pytest.raises(NothingToDoError, match="has no complete checkpoint of step 4; it has 3"):
        export_run(str(run), tmp_path / "other", 4, "fp32")
    with pytest.raises(NothingToDoError, match="rows is not a run's folder"):
        export_run(str(tmp_path / "rows"), tmp_path / "other", None, "fp32")
    assert not list(tmp_path.glob("other*"))
