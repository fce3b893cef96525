"""Files of text, rows and chats become token files; what cannot be used is named by file and row."""

import json

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from ranks import QWEN2
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from training import model
from training.config import DataConfig, ModelConfig, TrainConfig
from training.data import PackedTokens, Prefetched, check_before_start, micro_batches, open_data, read_tokens
from training.errors import JobError
from training.token_files import open_folder

CPU = torch.device("cpu")
WORDS = ["<end>", "<unk>", "user", "assistant", ":", *(f"w{i}" for i in range(50))]
PREFIXES = ("{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' <end> ' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant : {% endif %}")
GENERATION = ("{% for m in messages %}{{ m['role'] + ' : ' }}{% if m['role'] == 'assistant' %}{% generation %}"
              "{{ m['content'] + ' <end> ' }}{% endgeneration %}{% else %}{{ m['content'] + ' <end> ' }}{% endif %}"
              "{% endfor %}")
LAST_ONLY = ("{% for m in messages %}{{ (m['role'] if loop.last else 'w9') + ' : ' + m['content'] + ' ' }}"
             "{% endfor %}")
CHAT = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3"},
        {"role": "user", "content": "w4"}, {"role": "assistant", "content": "w5 w6"}]


@pytest.fixture
def tokenizer(tmp_path, monkeypatch):
    """Makes a folder with a tokenizer of one token a word and the chat template given."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def make(template=None):
        made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
        made.chat_template = template
        made.save_pretrained(tmp_path / "tokenizer")
        return str(tmp_path / "tokenizer")

    return make


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read(path, tokenizer, **data):
    model = ModelConfig(weights="random", architecture=QWEN2)
    return read_tokens(DataConfig(path=str(path), tokenizer=tokenizer, **{"kind": "jsonl", **data}), model)


def words_of(found):
    return " ".join(WORDS[i] for i in found.tokens)


def counted_words(found):
    return [WORDS[i] for i, counts in zip(found.tokens, found.counted, strict=True) if counts]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_are_documents_in_file_and_row_order(tmp_path, tokenizer, kind):
    folder = tmp_path / "rows"
    (folder / "deeper").mkdir(parents=True)
    for name, texts in (("b", ["w5"]), ("a", ["w1 w2", "w3"]), ("deeper/c", ["w7"])):
        file = folder / f"{name}.{kind}"
        if kind == "jsonl":
            write_rows(file, [{"text": text, "id": 1} for text in texts])
        else:
            parquet.write_table(pyarrow.table({"text": texts, "id": [1] * len(texts)}), file)
    found = read(folder, tokenizer(), kind=kind)
    assert words_of(found) == "w1 w2 <end> w3 <end> w5 <end> w7 <end>"
    assert found.starts.tolist() == [0, 3, 5, 7]
    assert found.counted is None


@pytest.mark.parametrize("template", [PREFIXES, GENERATION])
def test_only_the_answers_of_a_chat_count(tmp_path, tokenizer, template):
    found = read(write_rows(tmp_path / "chat.jsonl", [{"messages": CHAT}]), tokenizer(template), rows="messages")
    assert words_of(found).startswith("user : w1 w2 <end> assistant : w3 <end> user : w4 <end>")
    assert counted_words(found) == ["w3", "<end>", "w5", "w6", "<end>"]


def test_only_the_completion_of_a_prompt_counts(tmp_path, tokenizer):
    rows = [{"prompt": "w1 w2", "completion": "w3"}, {"prompt": "w4", "completion": "w5"}]
    found = read(write_rows(tmp_path / "p.jsonl", rows), tokenizer(), rows="prompt")
    assert words_of(found) == "w1 w2 w3 <end> w4 w5 <end>"
    assert counted_words(found) == ["w3", "<end>", "w5", "<end>"]


@pytest.mark.parametrize(("rows", "data", "template", "message"), [
    ([{"text": "w1"}, {"body": "w2"}], {}, None, "a.jsonl row 2 has no column text; it has body"),
    ([{"text": "w1"}, {"text": 7}], {}, None, "a.jsonl row 2: column text is int, not text"),
    ([["w1"]], {}, None, "a.jsonl row 1 is a list; each line must be an object"),
    ([{"messages": CHAT}], {"rows": "messages"}, None, "has no chat template"),
    ([{"messages": CHAT[:1]}], {"rows": "messages"}, PREFIXES, "a.jsonl row 1 has no message of the assistant"),
    ([{"messages": [{"role": "user"}]}], {"rows": "messages"}, PREFIXES, "row 1: each message must have a role"),
    ([{"messages": CHAT}], {"rows": "messages"}, LAST_ONLY, "the chat template renders message 2 differently"),
])
def test_a_row_that_cannot_be_used_is_named(tmp_path, tokenizer, rows, data, template, message):
    with pytest.raises(JobError) as error:
        read(write_rows(tmp_path / "a.jsonl", rows), tokenizer(template), **data)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_damage_is_named_before_a_worker_starts(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": "w1"}\n{"text": \n')
    with pytest.raises(JobError, match=r"bad\.jsonl row 2 is not JSON"):
        check_before_start(DataConfig(kind="jsonl", path=str(tmp_path / "bad.jsonl")))
    table = tmp_path / "bad.parquet"
    parquet.write_table(pyarrow.table({"text": ["w1"]}), table)
    with pytest.raises(JobError, match=r"bad\.parquet has no column body; it has text"):
        check_before_start(DataConfig(kind="parquet", path=str(table), column="body"))
    table.write_bytes(table.read_bytes()[:-9])
    with pytest.raises(JobError, match=r"bad\.parquet after row 0 is not a readable Parquet file"):
        check_before_start(DataConfig(kind="parquet", path=str(table)))


def test_a_token_beyond_the_vocabulary_is_named_with_its_row(tmp_path, tokenizer):
    path = write_rows(tmp_path / "a.jsonl", [{"text": "w1 " * 9}, {"text": "w49"}])
    config = TrainConfig(model=ModelConfig(weights="random", architecture=QWEN2), sequence_length=8,
                         data=DataConfig(kind="jsonl", path=path, tokenizer=tokenizer()))
    with pytest.raises(JobError, match=r"token id 54, .* ends at 39: .* the model \(.*a\.jsonl row 2\)"):
        open_data(config, 40)


@pytest.mark.parametrize(("words", "message"), [
    (WORDS, None),
    ([*WORDS, "w999"], None),
    ([*WORDS[:5], *reversed(WORDS[5:])], r"token 'w0' is 54 and not 5; remove it, and the model's own is used"),
    (WORDS[:20], r"it knows 20 of the model's 56 tokens"),
])
def test_a_tokenizer_other_than_that_of_the_weights_is_refused(tmp_path, tokenizer, words, message):
    own = tokenizer()
    (tmp_path / "tokenizer" / "config.json").write_text(json.dumps(QWEN2))
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>").save_pretrained(tmp_path / "other")
    data = DataConfig(kind="jsonl", tokenizer=str(tmp_path / "other"),
                      path=write_rows(tmp_path / "a.jsonl", [{"text": "w1 w2"}]))
    if message is None:
        read_tokens(data, ModelConfig(name=own))
    else:
        with pytest.raises(JobError, match=f"^training.data.tokenizer .*other does not match .*{message}"):
            read_tokens(data, ModelConfig(name=own))
    read_tokens(data, ModelConfig(weights="random", architecture=QWEN2))


def test_token_files_that_are_cut_short_are_refused(tmp_path, tokenizer):
    read(write_rows(tmp_path / "a.jsonl", [{"text": "w1 " * 9}]), tokenizer())
    folder = next(tmp_path.glob("eagleray-*/tokens-*/index.json")).parent
    assert open_folder(folder).tokens.shape == (10,)
    (folder / "tokens.bin").write_bytes(b"1234")
    with pytest.raises(JobError, match=r"tokens\.bin has 4 bytes where index\.json says 40"):
        open_folder(folder)


def test_a_document_kept_apart_has_the_loss_that_it_has_alone():
    torch.manual_seed(0)
    config = model.read_config(ModelConfig(weights="random", architecture=QWEN2))
    trained = model.CausalLMWithLoss(model.AutoModelForCausalLM.from_config(config))
    documents = [[5, 9, 3, 0], [7, 7, 8, 2, 6, 0], [4, 1, 0]]
    tokens = np.array([token for one in documents for token in one] + [1], dtype=np.uint32)
    starts = np.cumsum([0, *map(len, documents)])

    def loss(*arrays):
        return float(trained(*(torch.from_numpy(a)[None] for a in arrays)).detach())

    alone = sum(loss(np.array(one[:-1]), np.array(one[1:])) for one in documents)
    apart = PackedTokens(tokens, 13, 0, starts=starts).row(0)
    assert apart.positions is not None
    assert apart.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert loss(*apart) == pytest.approx(alone, rel=1e-5)
    joined = PackedTokens(tokens, 13, 0).row(0)
    assert loss(joined.inputs, apart.labels) != pytest.approx(alone, rel=1e-4)


def test_a_model_that_takes_no_positions_is_refused():
    bloom = model.empty_model(model.read_config(ModelConfig(weights="random", architecture={
        "model_type": "bloom", "vocab_size": 64, "hidden_size": 32, "n_layer": 1, "n_head": 4})))
    with pytest.raises(JobError, match="BloomForCausalLM cannot keep documents apart"):
        model.check_documents_apart(bloom)


def test_prefetched_steps_are_those_asked_for():
    packed = PackedTokens(np.arange(2000, dtype=np.uint32), 8, 0)
    config = TrainConfig(micro_batch=2, accumulation=2, sequence_length=8, steps=5)
    prefetched = Prefetched(packed, config, 1, 2, CPU)
    for number in (2, 3, 5, 1):
        expected = list(micro_batches(packed, config, number, 1, 2, CPU))
        assert all(torch.equal(a, b) for one, other in zip(prefetched.step(number), expected, strict=True)
                   for a, b in zip(one, other, strict=True))
        assert prefetched.waited_seconds > 0
