"""A checkpoint as a Hugging Face folder: `from_pretrained` gives the logits of the model that was saved."""

import pytest
import ranks
import torch
from test_documents import WORDS
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from training import model, step
from training.checkpointing import Checkpoints
from training.config import CheckpointConfig, ModelConfig, OptimizerConfig, TrainConfig
from training.errors import JobError
from training.export import export
from training.storage import RunFolder


def save_step(folder, architecture):
    """Save a model of random weights as step 3; returns its logits."""
    torch.manual_seed(5)
    config = model.read_config(ModelConfig(weights="random", architecture=architecture))
    built = AutoModelForCausalLM.from_config(config)
    trained = model.CausalLMWithLoss(built)
    optimizer = step.make_optimizer(trained, OptimizerConfig())
    Checkpoints(RunFolder(folder, "tiny"), CheckpointConfig(), built, optimizer).save_now(3)
    return built.eval()(torch.arange(32)[None]).logits.detach()


def save_words(folder):
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", chat_template="{{ messages }}",
                            ).save_pretrained(folder)


@pytest.mark.parametrize(("tied", "file_bytes"), [(True, 2 << 30), (False, 10_000)])
def test_logits_are_those_that_were_saved(tmp_path, tied, file_bytes):
    architecture = {**ranks.QWEN2, "tie_word_embeddings": tied}
    (expected,) = ranks.run(1, save_step, str(tmp_path), architecture)
    save_words(tmp_path / "words")
    training = TrainConfig.model_validate({
        "model": {"weights": "random", "architecture": architecture},
        "data": {"kind": "text", "path": "corpus", "tokenizer": str(tmp_path / "words")}})
    run, out = RunFolder(str(tmp_path), "tiny"), tmp_path / "model"
    assert export(run, None, training, out, "fp32", file_bytes) == 3
    loaded = AutoModelForCausalLM.from_pretrained(out)
    assert torch.equal(loaded.eval()(torch.arange(32)[None]).logits, expected)
    assert AutoTokenizer.from_pretrained(out).convert_tokens_to_ids("w0") == WORDS.index("w0")
    assert (len(list(out.glob("*.safetensors"))) > 1) == (file_bytes < 1 << 20)
    with pytest.raises(JobError, match="exists already"):
        export(run, None, training, out)
    with pytest.raises(JobError, match="no complete checkpoint of step 4; it has 3"):
        export(run, 4, training, tmp_path / "other")
    wider = training.model_copy(update={"model": ModelConfig(
        weights="random", architecture={**architecture, "vocab_size": 70})})
    with pytest.raises(JobError, match=r"is \[64, 32\] in the checkpoint and \[70, 32\] in the model"):
        export(run, None, wider, tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_a_tokenizer_at_a_uri_comes_along_or_nothing_does(tmp_path):
    """Of s3:// in life; pyarrow reads file:// in the same way."""
    ranks.run(1, save_step, str(tmp_path), ranks.QWEN2)
    run, given = RunFolder(str(tmp_path), "tiny"), tmp_path / "given"
    save_words(given)
    inline = {"weights": "random", "architecture": ranks.QWEN2}
    model.read_config(ModelConfig.model_validate(inline)).save_pretrained(given)
    with_the_model = TrainConfig.model_validate({"model": {"name": f"file://{given}"}})
    apart = TrainConfig.model_validate({
        "model": inline, "data": {"kind": "text", "path": "corpus", "tokenizer": f"file://{given}"}})
    for number, training in enumerate((with_the_model, apart)):
        export(run, None, training, tmp_path / f"model-{number}")
        loaded = AutoTokenizer.from_pretrained(tmp_path / f"model-{number}")
        assert loaded.convert_tokens_to_ids("w0") == WORDS.index("w0")
        assert loaded.chat_template == "{{ messages }}"
    given.rename(tmp_path / "gone")
    with pytest.raises(JobError, match=f"training.data.tokenizer file://{given} cannot be read"):
        export(run, None, apart, tmp_path / "again")
    assert not (tmp_path / "again").exists()
