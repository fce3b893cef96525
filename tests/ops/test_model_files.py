"""`eagleray tokenize` as a command: files it writes, rows it names, folders it leaves alone."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from ops.errors import NothingToDoError
from ops.model_files import tokenize_files
from training.token_files import open_folder


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
