"""Pretrained weights: from the Hub, S3 or a folder, once a node, and never whole in a rank's memory."""

import json
import multiprocessing
import os
import signal
import time

import pytest
import ranks
import sharded_cases as cases
import torch
from local_hub import COMMIT, TOKEN, LocalHub, serving
from ranks import QWEN2
from transformers import AutoModelForCausalLM

from training import model_folder
from training.config import ModelConfig
from training.errors import JobError
from training.model import read_config
from training.pretrained import Pretrained
from training.storage import once_per_node

UNTIED = {**QWEN2, "tie_word_embeddings": False}
MIXTRAL = {**{k: v for k, v in QWEN2.items() if k != "tie_word_embeddings"}, "model_type": "mixtral",
           "num_local_experts": 4}


def save(folder, architecture=QWEN2, **how):
    """A Hugging Face folder of random weights; returns the model."""
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(read_config(ModelConfig(weights="random", architecture=architecture)))
    made.save_pretrained(folder, **how)
    return made


@pytest.fixture
def own_node(tmp_path, monkeypatch):
    """A node's cache of its own."""
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))


@pytest.fixture
def hub(tmp_path, monkeypatch, own_node):
    """A stand-in for the Hub with the tiny model `our/tiny` at COMMIT."""
    save(tmp_path / "tiny")
    found = LocalHub()
    found.repositories["models/our/tiny"] = tmp_path / "tiny"
    with serving(found):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", found.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
                            found.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield found


def opened(name, revision=COMMIT):
    model = ModelConfig(name=str(name), revision=revision)
    return Pretrained.open(model, read_config(model))


def test_a_model_of_the_hub_is_downloaded_once_and_then_needs_no_hub(hub, monkeypatch):
    opened("our/tiny")
    assert sorted(hub.downloads) == ["our/tiny/config.json", "our/tiny/generation_config.json",
                                     "our/tiny/model.safetensors"]
    hub.downloads.clear()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    opened("our/tiny")
    assert not hub.downloads


def test_the_commit_that_a_branch_meant_is_known_and_may_be_noted(hub, monkeypatch):
    opened("our/tiny", "main")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for revision in ("main", COMMIT):
        assert model_folder.commit(model_folder.Source("", "our/tiny", revision)) == COMMIT
    assert model_folder.commit(model_folder.Source("", "our/other", "main")) is None
    assert model_folder.commit(model_folder.Source("", "s3://bucket/tiny", "main")) is None


def test_what_is_wrong_on_the_hub_is_one_line_that_says_what_would_work(hub, monkeypatch):
    hub.gated.add("models/our/tiny")
    with pytest.raises(JobError, match=r"^training\.model\.name our/tiny at \w+ is gated: accept .* "
                       r"ray\.hf_token_secret names a Kubernetes Secret with one, .* this job has none, or copy"):
        opened("our/tiny")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(JobError, match=r"is gated: .* another token .*: the one that it has may not read") as wrong:
        opened("our/tiny")
    assert "somebody" not in str(wrong.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    opened("our/tiny")
    with pytest.raises(JobError, match=r"has no revision v9 on the Hub; set training\.model\.revision to one of"):
        opened("our/tiny", "v9")
    with pytest.raises(JobError, match=r"our/tinny at \w+ is neither a folder here nor a repository that the Hub"):
        opened("our/tinny")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JobError, match=r"our/other at \w+ is not on this node and the Hub cannot be reached; give"):
        opened("our/other")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(JobError, match=rf"^training\.model\.name {tmp_path}/none is no folder on this node; name"):
        opened(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(JobError, match=r"empty holds no config\.json; name a Hugging Face folder"):
        opened(tmp_path / "empty")


def _spoil(folder, how):
    files = sorted(folder.glob("*.safetensors"))
    if how == "missing file":
        files[1].unlink()
    elif how == "cut short":
        files[0].write_bytes(files[0].read_bytes()[:-5])
    elif how == "no weights":
        for file in [*files, folder / "model.safetensors.index.json"]:
            file.unlink()
    elif how == "damaged index":
        (folder / "model.safetensors.index.json").write_text('{"weight_map"')
    else:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **how}))


@pytest.mark.parametrize(("how", "message"), [
    ("missing file", r"lacks model-00002-of-\d+\.safetensors, which its model\.safetensors\.index\.json names"),
    ("cut short", r"model-00001-of-\d+\.safetensors is damaged or cut short"),
    ("no weights", r"holds no model\.safetensors; .* set training\.model\.weights to random"),
    ("damaged index", r"model\.safetensors\.index\.json is damaged; fetch the model again"),
    ({"vocab_size": 70}, r"embed_tokens\.weight is \[64, 32\] in model-\S+ and \[70, 32\] by config"),
    ({"quantization_config": {"quant_method": "fp8"}}, "is quantised, and quantised weights cannot be trained"),
])
def test_files_that_do_not_fill_the_model_are_named(tmp_path, how, message):
    save(tmp_path / "model", max_shard_size="20KB")
    _spoil(tmp_path / "model", how)
    with pytest.raises(JobError, match=f"^training.model.name .*{message}") as error:
        opened(tmp_path / "model")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("architecture", [QWEN2, UNTIED, MIXTRAL, {
    "model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}],
    ids=["tied", "untied", "experts under other names", "gpt2"])
def test_the_model_has_the_weights_that_from_pretrained_gives(tmp_path, own_node, architecture):
    save(tmp_path / "model", architecture, max_shard_size="20KB")
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    found = opened(tmp_path / "model")
    compared = 0
    for name, value in expected.items():
        target = torch.full_like(value, float("nan"))
        found.copy_into(name, target)
        if name != "lm_head.weight" or not architecture.get("tie_word_embeddings", True):
            assert torch.equal(target, value), name
            compared += 1
    assert compared >= 20


def _hold(cache, started):
    import tempfile

    tempfile.tempdir = cache

    def make(target):
        target.mkdir()
        (target / "half").write_text("")
        started.set()
        time.sleep(600)

    once_per_node("thing", make)


def test_a_rank_killed_in_a_download_leaves_it_to_the_next(tmp_path, own_node):
    fork = multiprocessing.get_context("fork")
    started = fork.Event()
    holder = fork.Process(target=_hold, args=(str(tmp_path / "node"), started))
    holder.start()
    assert started.wait(30)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    found = once_per_node("thing", lambda target: target.mkdir())
    assert list(found.iterdir()) == []


def test_no_rank_holds_more_than_its_shards_and_a_layer(tmp_path):
    wide = {**QWEN2, "vocab_size": 256, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
            "num_attention_heads": 8}
    made = save(tmp_path / "model", wide)
    fp32 = 4 * sum(p.numel() for p in made.parameters())
    layer = 4 * sum(p.numel() for p in made.model.layers[0].parameters())
    assert fp32 > 150e6
    for peak in ranks.run(2, cases.peak_of_load, tmp_path / "model", wide):
        assert peak < fp32 / 2 + 3 * layer + 16e6


def test_what_is_on_the_hub_is_told_from_a_path(tmp_path):
    assert model_folder.Source("", "Qwen/Qwen2.5-1.5B", None).is_on_hub
    for name in (str(tmp_path), "/no/such", "./here", "s3://bucket/model"):
        assert not model_folder.Source("", name, None).is_on_hub
