"""What a job reads from hostile hands, other than checkpoints and rows of data: one clear line."""

import pytest

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
