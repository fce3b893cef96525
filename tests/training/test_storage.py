"""Files in a run's folder are whole, whoever else writes them."""

import threading

import pytest

from training.storage import RunFolder


def test_of_many_that_write_a_file_at_once_each_does_and_it_is_always_whole(tmp_path):
    folder = RunFolder(str(tmp_path), "run")
    texts, failures = [letter * 50_000 for letter in "abcd"], []
    folder.write_text("file", texts[0])

    def write(text):
        try:
            for _ in range(40):
                folder.write_text("file", text)
                assert folder.read_text("file") in texts
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["file"]


def test_a_file_that_cannot_be_put_leaves_the_old_one_and_nothing_else(tmp_path):
    folder = RunFolder(str(tmp_path), "run")
    folder.write_text("file", "old")
    with pytest.raises(FileNotFoundError):
        folder.put(tmp_path / "none", "file")
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["file"]
    assert folder.read_text("file") == "old"
