"""Sequences: the same for the same seed, shared out without overlap, none lost and none twice in an epoch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import QWEN2
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from training.config import DataConfig, ModelConfig, TrainConfig
from training.data import PackedTokens, RandomTokens, micro_batches, open_data, read_tokens
from training.errors import JobError

CPU = torch.device("cpu")
WORDS = ["<end>", "<unk>", *(f"w{i}" for i in range(60))]


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """A folder with a tokenizer of one token a word; <end> is 0."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>").save_pretrained(folder)
    return folder


def text_config(path, tokenizer, **changes):
    return TrainConfig(
        model=ModelConfig(weights="random", architecture=QWEN2),
        data=DataConfig(kind="text", path=str(path), tokenizer=str(tokenizer)),
        sequence_length=8, micro_batch=1, **changes,
    )


def tokens_of(config):
    return read_tokens(config.data, config.model).tokens.tolist()


@settings(deadline=None, max_examples=50)
@given(tokens=st.integers(9, 200), length=st.integers(2, 8), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_each_token_is_a_label_once_an_epoch_but_the_short_tail(tokens, length, seed, epoch):
    packed = PackedTokens(np.arange(tokens, dtype=np.uint32), length, seed)
    rows = [packed[epoch * packed.count + i] for i in range(packed.count)]
    assert all((row[1:] == row[:-1] + 1).all() for row in rows)
    labels = sorted(int(t) for row in rows for t in row[1:])
    assert labels == list(range(1, packed.count * length + 1))
    assert tokens - 1 - len(labels) < length


def test_each_epoch_has_its_own_order_and_the_seed_decides_it():
    tokens = np.arange(1000, dtype=np.uint32)

    def first_tokens(seed, epoch):
        packed = PackedTokens(tokens, 10, seed)
        return [int(packed[epoch * packed.count + i][0]) for i in range(packed.count)]

    assert first_tokens(1, 0) == first_tokens(1, 0)
    assert first_tokens(1, 0) != first_tokens(1, 1)
    assert first_tokens(1, 0) != first_tokens(2, 0)
    assert sorted(first_tokens(1, 0)) == sorted(first_tokens(1, 1))


@settings(deadline=None, max_examples=30)
@given(world=st.sampled_from([1, 2, 4]), turns=st.sampled_from([1, 2]), step=st.integers(1, 5))
def test_ranks_share_out_a_step_and_their_number_does_not_change_it(world, turns, step):
    packed = PackedTokens(np.arange(2000, dtype=np.uint32), 8, 0)

    def rows(world, turns):
        config = TrainConfig(micro_batch=8 // world // turns, accumulation=turns, sequence_length=8)
        parts = [
            [tuple(row.tolist()) for ids, labels in micro_batches(packed, config, step, rank, world, CPU)
             for row in torch.cat([ids, labels[:, -1:]], 1)]
            for rank in range(world)
        ]
        flat = [row for part in parts for row in part]
        assert len(set(flat)) == len(flat) == 8
        return set(flat)

    assert rows(world, turns) == rows(1, 1)


def test_random_tokens_cover_the_vocabulary_and_follow_the_seed():
    tokens = RandomTokens(50, 999, seed=3)
    assert set(tokens[0]) | set(tokens[1]) == set(range(50))
    assert (tokens[7] == RandomTokens(50, 999, seed=3)[7]).all()
    assert (tokens[7] != RandomTokens(50, 999, seed=4)[7]).any()
    assert (tokens[7] != tokens[8]).any()


def test_files_are_documents_in_name_order_with_an_end_after_each(tmp_path, tokenizer):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "b.txt").write_text("w3 w4\nw5")
    (corpus / "a.txt").write_text("w1 w2 " * 10)
    (corpus / "readme.md").write_text("w9 " * 50)
    config = text_config(corpus, tokenizer)
    assert tokens_of(config) == [3, 4] * 10 + [0] + [5, 6, 7, 0]
    assert tokens_of(text_config(corpus / "b.txt", tokenizer)) == [5, 6, 7, 0]


def test_changed_text_is_read_anew(tmp_path, tokenizer):
    file = tmp_path / "corpus.txt"
    file.write_text("w1 " * 20)
    config = text_config(file, tokenizer)
    assert set(tokens_of(config)) == {3, 0}
    file.write_text("w2 " * 21)
    assert set(tokens_of(config)) == {4, 0}


@pytest.mark.parametrize(("text", "vocabulary", "message"), [
    (None, 64, "does not exist on this node"),
    ("", 64, "holds no text"),
    ("w1 w2 w3", 64, "holds 4 tokens; training.sequence_length 8 needs 9 at least"),
    ("w1 w50 " * 9, 40, "has token id 52, but the model's vocabulary ends at 39: the tokenizer does not match"),
])
def test_text_that_cannot_be_trained_on_is_named(tmp_path, tokenizer, text, vocabulary, message):
    file = tmp_path / "corpus.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(JobError) as error:
        open_data(text_config(file, tokenizer), vocabulary)
    assert str(error.value).startswith(f"training.data.path {file} ")
    assert message in str(error.value)


def test_a_folder_without_text_files_is_named(tmp_path, tokenizer):
    with pytest.raises(JobError, match=r"holds no \*.txt file"):
        open_data(text_config(tmp_path, tokenizer), 64)


def test_bytes_that_are_no_text_are_named(tmp_path, tokenizer):
    file = tmp_path / "corpus.txt"
    file.write_bytes(b"w1 w2 \xff\xfe")
    with pytest.raises(JobError, match=r"corpus.txt is not UTF-8 text"):
        open_data(text_config(file, tokenizer), 64)


def test_a_missing_tokenizer_is_named(tmp_path):
    file = tmp_path / "corpus.txt"
    file.write_text("w1 " * 20)
    with pytest.raises(JobError, match=f"^training.data.tokenizer {tmp_path / 'none'}"):
        open_data(text_config(file, tmp_path / "none"), 64)


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path, tokenizer):
    folder = tmp_path / "endless"
    words = PreTrainedTokenizerFast.from_pretrained(tokenizer)
    words.eos_token = None
    words.save_pretrained(folder)
    file = tmp_path / "corpus.txt"
    file.write_text("w1 " * 20)
    with pytest.raises(JobError, match="has no end-of-text token to put between documents"):
        open_data(text_config(file, folder), 64)
