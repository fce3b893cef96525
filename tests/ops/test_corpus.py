"""The text of a rehearsal: the same everywhere with the same Python, and readable by transformers."""

from transformers import AutoTokenizer

from ops.corpus import END_OF_TEXT, write_corpus


def test_the_same_python_gives_the_same_text_and_tokenizer(tmp_path):
    first, second = write_corpus(tmp_path / "a", 512), write_corpus(tmp_path / "b", 512)
    assert first[0].read_bytes() == second[0].read_bytes()
    assert (first[1] / "tokenizer.json").read_bytes() == (second[1] / "tokenizer.json").read_bytes()


def test_text_survives_the_tokenizer_and_ids_fit_the_model(tmp_path):
    text, folder = write_corpus(tmp_path, 512)
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    sample = text.read_text()[:5000]
    ids = tokenizer(sample)["input_ids"]
    assert max(ids) < 512
    assert tokenizer.decode(ids) == sample
    assert tokenizer.eos_token == END_OF_TEXT
