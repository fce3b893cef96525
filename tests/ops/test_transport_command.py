"""`eagleray transport` as a person and a script see it."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

SAMPLES = Path(__file__).resolve().parent.parent / "training" / "nccl_samples"


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.parametrize(("sample", "code"), [
    ("efa-all_ranks", 0), ("tcp-socket_network", 3), ("error-memlock_limit", 4), ("unproven-single_node", 5)])
def test_the_exit_code_is_the_verdict(eagleray, capsys, sample, code):
    assert eagleray("transport", SAMPLES / f"{sample}.log") == code
    assert f"transport: {sample.split('-')[0]}" in capsys.readouterr().out


def test_a_reason_comes_with_what_was_seen_and_how_to_mend_it_in_80_columns(eagleray, capsys):
    eagleray("transport", SAMPLES / "error-efa_peer_unreachable.log")
    shown = capsys.readouterr().out
    assert "efa_peer_unreachable" in shown
    assert "mend: let the security group" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_json_holds_reasons_and_ranks(eagleray, capsys):
    assert eagleray("transport", "--json", SAMPLES / "tcp-socket_network-one_of_two.log") == 3
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "tcp"
    assert [reason["code"] for reason in told["reasons"]] == ["socket_network"]
    assert set(told["reasons"][0]) == {"code", "detail", "mend", "ranks"}
    assert [(rank["host"], rank["provider"], rank["channels"]) for rank in told["ranks"]] == [
        ("node-a", "efa", {"NET/Libfabric": 1}), ("node-b", None, {})]


def test_a_folder_is_all_files_below_it(eagleray, capsys, tmp_path):
    lines = (SAMPLES / "efa-all_ranks.log").read_text().splitlines(keepends=True)
    for name in ("node-a", "node-b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "nccl.log").write_text("".join(line for line in lines if line.startswith(name)))
    assert eagleray("transport", tmp_path) == 0
    assert "one_rank_log" not in capsys.readouterr().out
    assert eagleray("transport", tmp_path, "--ranks", "4") == 5
    assert "2 processes of 4" in capsys.readouterr().out


def test_standard_input(eagleray, monkeypatch):
    data = io.BytesIO((SAMPLES / "efa-all_ranks.log").read_bytes())
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=data))
    assert eagleray("transport", "-") == 0


@pytest.mark.parametrize(("name", "said"), [("nowhere.log", "no such file"), ("empty", "an empty folder")])
def test_what_cannot_be_read_is_said_in_a_line(eagleray, capsys, tmp_path, name, said):
    (tmp_path / "empty").mkdir()
    assert eagleray("transport", SAMPLES / "efa-all_ranks.log", tmp_path / name) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert str(tmp_path / name) in told.err.replace("\n", "")
    assert not told.out


def test_a_file_that_may_not_be_opened(eagleray, monkeypatch, capsys, tmp_path):
    log = tmp_path / "nccl.log"
    log.write_text("x")

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)  # as root, a mode would not refuse
    assert eagleray("transport", log) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_help_has_an_example_and_the_exit_codes(eagleray, capsys):
    assert eagleray("transport", "--help") == 0
    shown = capsys.readouterr().out
    assert "Example:" in shown
    assert "Exit codes: 0 efa, 3 tcp" in " ".join(shown.split())
