"""Results are whole or not there, and nobody else's folder is overwritten."""

import os

import pytest

from ops.errors import NothingToDoError
from ops.result_folder import RECORD, staged


def hold(out, text, ending=None):
    with staged(out) as folder:
        (folder / RECORD).write_text(text)
        if ending:
            raise ending


def test_results_replace_earlier_ones_as_a_whole(tmp_path):
    hold(tmp_path / "out", "old")
    (tmp_path / "out" / "extra").touch()
    hold(tmp_path / "out", "new")
    assert os.listdir(tmp_path / "out") == [RECORD]
    assert (tmp_path / "out" / RECORD).read_text() == "new"


@pytest.mark.parametrize("ending", [RuntimeError, KeyboardInterrupt])
def test_earlier_results_survive_a_rehearsal_that_fails(tmp_path, ending):
    hold(tmp_path / "out", "old")
    with pytest.raises(ending):
        hold(tmp_path / "out", "half", ending)
    assert (tmp_path / "out" / RECORD).read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == [".out.lock", "out"]


def test_a_first_rehearsal_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(RuntimeError):
        hold(tmp_path / "out", "half", RuntimeError)
    assert not (tmp_path / "out").exists()


def test_a_second_rehearsal_in_the_same_folder_is_refused_while_the_first_runs(tmp_path):
    with staged(tmp_path / "out") as folder:
        (folder / RECORD).touch()
        with pytest.raises(NothingToDoError, match=f"another command .process {os.getpid()}.*--out"):
            hold(tmp_path / "out", "second")
        hold(tmp_path / "beside", "third")
    hold(tmp_path / "out", "later")
    assert (tmp_path / "out" / RECORD).read_text() == "later"


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(NothingToDoError, match="something else"):
        hold(tmp_path, "x")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(NothingToDoError, match="is a file"):
        hold(tmp_path / "out", "x")


def test_what_a_killed_rehearsal_left_is_removed(tmp_path):
    (tmp_path / ".out.new-abc").mkdir()
    hold(tmp_path / "out", "x")
    assert not (tmp_path / ".out.new-abc").exists()
