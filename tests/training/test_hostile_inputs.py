"""What a job reads from hostile hands, other than checkpoints: one clear line, and no memory filled."""

import gzip

import pytest

from training import documents
from training.config import DataConfig
from training.data_files import find_files, parts
from training.errors import JobError
from training.train import read_job


@pytest.mark.parametrize(("written", "message"), [
    (b"[" * 200_000, "recursion limit"),
    (b'{"training":' * 80_000, "recursion limit"),
    (b" " * (2 << 20), "larger than 1 MiB"),
    (b"\xff\xfe", "Invalid JSON"),
    (b"{" + b",".join(b'"k%d\\n\\u001b[2J": 1' % i for i in range(2000)) + b"}", "and 1983 more"),
    (b"", "Invalid JSON"),
], ids=["deep lists", "deep objects", "huge", "no text", "many settings", "empty"])
def test_a_train_json_that_is_none_is_one_line(tmp_path, written, message):
    path = tmp_path / "train.json"
    path.write_bytes(written)
    with pytest.raises(JobError) as raised:
        read_job(path)
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert text.isprintable()
    assert len(text) < 2500


def test_a_packed_row_that_unpacks_without_end_is_named_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "_MOST_ROW", 3 << 20)
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.GzipFile(path, "wb") as stream:
        stream.write(b'{"text": "good"}\n{"text": "')
        for _ in range(32):
            stream.write(b"a" * (1 << 20))
        stream.write(b'"}\n')
    data = DataConfig(kind="jsonl", path=str(path))
    found = find_files(data)
    rows = documents.documents(found, parts(found)[0], data)
    assert next(rows).value == "good"
    with pytest.raises(JobError, match=r"bomb\.jsonl\.gz row 2 unpacks into more than 3 MiB"):
        next(rows)
