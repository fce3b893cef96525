"""Text tokenised in parts before the ranks start: the same tokens as on one node, and nothing made twice."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pytest
import ranks
from loop_cases import work as ranks_work
from pyarrow import parquet
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from training import data_files, place, token_parts, tokenising
from training.config import ModelConfig, TrainJob
from training.data import read_tokens
from training.errors import JobError
from training.storage import RunFolder

ROOT = Path(__file__).resolve().parents[2]
WORDS = ["<end>", "<unk>", *(f"w{i}" for i in range(60))]


@pytest.fixture
def make_job(tmp_path, monkeypatch):
    """A job on files of `tmp_path/rows`, with a tokenizer of one token a word; <end> is 0."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>").save_pretrained(
        tmp_path / "tokenizer")
    (tmp_path / "rows").mkdir()

    def make(kind, world=1, rows="text", **training):
        data = {"kind": kind, "path": str(tmp_path / "rows"), "rows": rows,
                "tokenizer": str(tmp_path / "tokenizer")}
        return TrainJob.model_validate(ranks.job(str(tmp_path / "runs"), world=world, data=data, **training))

    return make


def planned(job):
    source = tokenising.look(job.training.model_dump_json())
    assert isinstance(source, tokenising.Source), source
    return tokenising.plan(job, source)


def without_ray(monkeypatch):
    """Ray's part done in this process, the last part first; the numbers of the parts that are really made."""
    made, true_encoded = [], tokenising.data.encoded
    monkeypatch.setattr(tokenising, "_seen_by_a_worker", planned_source)
    monkeypatch.setattr(tokenising, "_through_ray", lambda work: (
        tokenising.tokenise_part(work, number) for number in reversed(range(len(work.parts)))))

    def encoded(found, slices, *others):
        made.append(slices)
        return true_encoded(found, slices, *others)

    monkeypatch.setattr(tokenising.data, "encoded", encoded)
    return made


def planned_source(config, _patience):
    source = tokenising.look(config.model_dump_json())
    if isinstance(source, str):
        raise JobError(source)
    return source


def tokenised(job):
    run = RunFolder(job.placement.storage, job.name)
    tokenising.tokenise_first(job, run)
    found = tokenising.tokens_of(run)
    assert found is not None
    return found


def write(folder, kind):
    """Some files of each kind; a text whose first lines hold no word."""
    lines = [" ".join(f"w{(i * 7 + j) % 60}" for j in range(i % 9 + 1)) for i in range(60)]
    if kind == "text":
        (folder / "a.txt").write_text("\n" * 150 + "\n".join(lines))
        (folder / "b.txt").write_text("w1")
    elif kind == "parquet":
        parquet.write_table(pyarrow.table({"text": lines}), folder / "a.parquet", row_group_size=7)
    else:
        rows = [{"text": line, "prompt": line, "completion": f"w{i % 60}"} for i, line in enumerate(lines)]
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "b.jsonl").write_text(json.dumps(rows[3]))


@pytest.mark.parametrize("part_bytes", [40, 333, 1 << 20])
@pytest.mark.parametrize(("kind", "rows"), [("text", "text"), ("jsonl", "text"), ("jsonl", "prompt"),
                                            ("parquet", "text")])
def test_parts_of_any_size_hold_the_tokens_that_one_node_makes(tmp_path, make_job, monkeypatch, kind, rows,
                                                               part_bytes):
    job = make_job(kind, rows=rows)
    write(tmp_path / "rows", kind)
    monkeypatch.setattr(data_files, "PART_BYTES", part_bytes)
    without_ray(monkeypatch)
    parts, one = tokenised(job), read_tokens(job.training.data, job.training.model)
    assert len(planned(job).parts) > 1 or part_bytes > 1000
    assert parts.tokens.tolist() == one.tokens.tolist()
    assert parts.starts.tolist() == one.starts.tolist()
    assert parts.highest == one.highest
    assert (parts.counted is None) == (one.counted is None) == (rows == "text")
    if one.counted is not None and parts.counted is not None:
        assert parts.counted.tolist() == one.counted.tolist()


def test_only_what_an_interrupted_job_left_out_is_made(tmp_path, make_job, monkeypatch):
    job = make_job("jsonl")
    write(tmp_path / "rows", "jsonl")
    monkeypatch.setattr(data_files, "PART_BYTES", 400)
    made = without_ray(monkeypatch)
    before = tokenised(job).tokens.tolist()
    work = planned(job)
    assert len(made) == len(work.parts) > 3
    tokenising.tokenise_first(job, RunFolder(job.placement.storage, "another-run"))
    assert len(made) == len(work.parts)

    tokens = Path(work.storage, work.folder)
    (tokens / "index.json").unlink()
    (tokens / "part-00002" / "index.json").unlink()  # its files lie there, but nobody knows whether whole
    (tokens / "part-00002" / "tokens.bin").write_bytes(b"half")
    made.clear()
    shutil.rmtree(next(tmp_path.glob("eagleray-*")))
    assert tokenised(job).tokens.tolist() == before
    assert made == [work.parts[2]]


def test_the_folder_of_the_tokens_follows_what_decides_them_and_nothing_else(tmp_path, make_job, monkeypatch):
    write(tmp_path / "rows", "jsonl")
    folder = planned(make_job("jsonl")).folder
    assert planned(make_job("jsonl", seed=9, steps=3, sequence_length=32)).folder == folder
    assert planned(make_job("jsonl", rows="prompt")).folder != folder
    monkeypatch.setattr(data_files, "PART_BYTES", 400)
    assert planned(make_job("jsonl")).folder != folder
    monkeypatch.undo()
    settings = tmp_path / "tokenizer" / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("{", '{"padding_side": "left",', 1))
    changed = planned(make_job("jsonl")).folder
    assert changed != folder
    with open(tmp_path / "rows" / "b.jsonl", "a") as file:
        file.write('\n{"text": "w1"}')
    assert planned(make_job("jsonl")).folder != changed


@pytest.mark.parametrize(("row", "message"), [
    ('{"text": 3}', r"b\.jsonl row 2: column text is int, not text"),
    ('{"text": "w59"', r"b\.jsonl row 2 is not JSON"),
])
def test_a_bad_row_ends_the_job_and_leaves_the_ranks_nothing(tmp_path, make_job, monkeypatch, row, message):
    job, run = make_job("jsonl"), RunFolder(str(tmp_path / "runs"), "tiny")
    write(tmp_path / "rows", "jsonl")
    without_ray(monkeypatch)
    tokenising.tokenise_first(job, run)
    with open(tmp_path / "rows" / "b.jsonl", "a") as file:
        file.write("\n" + row)
    with pytest.raises(JobError, match=message):
        tokenising.tokenise_first(job, run)
    assert run.read_json("tokens.json") is None


@pytest.mark.parametrize(("changes", "message"), [
    ({"sequence_length": 4096}, "tokens; training.sequence_length 4096 needs 4097 at least"),
    ({"model": {"weights": "random", "architecture": {**ranks.QWEN2, "vocab_size": 40}}},
     "has token id 61, but the model's vocabulary ends at 39"),
])
def test_tokens_that_cannot_train_the_model_are_refused_before_the_ranks(tmp_path, make_job, monkeypatch, changes,
                                                                         message):
    write(tmp_path / "rows", "jsonl")
    without_ray(monkeypatch)
    with pytest.raises(JobError, match=message):
        tokenised(make_job("jsonl", **changes))


def test_a_part_of_another_size_than_its_index_says_is_named(tmp_path, make_job, monkeypatch):
    job = make_job("text")
    write(tmp_path / "rows", "text")
    without_ray(monkeypatch)
    run, work = RunFolder(job.placement.storage, job.name), planned(job)
    tokenising.tokenise_first(job, run)
    Path(work.storage, work.folder, "part-00000", "tokens.bin").write_bytes(b"1234")
    with pytest.raises(JobError, match=r"part-00000/tokens\.bin has 4 bytes where its index says \d+; delete"):
        tokenising.tokens_of(run)


def age(folder, days):
    moment = time.time() - days * 86400
    for file in folder.rglob("*"):
        os.utime(file, (moment, moment))


def test_tokens_that_no_run_names_any_more_are_deleted_a_day_later(tmp_path, make_job, monkeypatch, capsys):
    job = make_job("jsonl")
    write(tmp_path / "rows", "jsonl")
    without_ray(monkeypatch)
    other = RunFolder(job.placement.storage, "other")
    storage = Path(job.placement.storage)
    tokenised(job)
    (before,) = storage.glob("tokens-*")
    (storage / "tokens-of-mine").mkdir()
    other.write_json("tokens.json", {"storage": str(storage), "folder": before.name})
    age(storage, days=2)
    with open(tmp_path / "rows" / "b.jsonl", "a") as file:
        file.write("\n" + json.dumps({"text": "w5"}))
    tokenised(job)
    assert before.is_dir()  # the other run's
    other.remove("tokens.json")
    tokenised(job)
    assert not before.exists()
    assert f"deleted {storage}/{before.name}: tokens that no run names any more" in capsys.readouterr().out
    (now,) = storage.glob("tokens-" + "[0-9a-f]" * 12)
    assert (storage / "tokens-of-mine").is_dir()
    shutil.rmtree(storage / job.name)
    assert token_parts.remove_unused(str(storage), "tokens.json") == []  # written today: perhaps a run begins
    age(storage, days=2)
    assert token_parts.remove_unused(str(storage), "tokens.json") == [now.name]


def test_the_commits_of_data_and_tokenizer_stand_with_the_tokens(tmp_path, make_job, monkeypatch):
    job, run = make_job("jsonl"), RunFolder(str(tmp_path / "runs"), "tiny")
    write(tmp_path / "rows", "jsonl")
    without_ray(monkeypatch)
    tokenising.tokenise_first(job, run)
    assert run.read_json("tokens.json")["commits"] == {}
    monkeypatch.setattr(tokenising.model_folder, "commit", lambda source: "abc" if source.name else None)
    tokenising.tokenise_first(job, run)
    assert run.read_json("tokens.json")["commits"] == {"training.data.tokenizer": "abc"}
    noted = place.commits(run, job)
    assert noted == {"training.data.tokenizer": "abc"}
    of_the_hub = job.training.model_copy(update={"model": ModelConfig(name="our/tiny")})
    assert place.commits(run, job.model_copy(update={"training": of_the_hub})) == {
        "training.model.name": "abc", "training.data.tokenizer": "abc"}


def test_a_job_without_text_asks_no_worker(tmp_path):
    job = TrainJob.model_validate(ranks.job(str(tmp_path), world=1))
    run = RunFolder(str(tmp_path), "tiny")
    run.write_json("tokens.json", {"storage": "/gone", "folder": "of an earlier start"})
    tokenising.tokenise_first(job, run)
    assert tokenising.tokens_of(run) is None


def test_counts_come_in_any_order_and_the_first_failure_ends_the_wait():
    counts = {"tokens": 2, "documents": 1, "counted": 2, "highest": 5, "highest_at": "a", "failure": ""}
    found = tokenising.collect(iter([{**counts, "part": 1, "highest_at": "b"}, {**counts, "part": 0}]), 2)
    assert [part["part"] for part in found] == [0, 1]
    assert token_parts.whole(found, {})["highest_at"] == "a"

    def rows():
        yield {**counts, "part": 0, "failure": "a.jsonl row 3 is not JSON"}
        pytest.fail("waited for another part")

    with pytest.raises(JobError, match=r"^a\.jsonl row 3 is not JSON$"):
        tokenising.collect(rows(), 2)


def run_job(folder, job, part_bytes):
    """`python -m training.train` on a copy of the package with small parts."""
    package = shutil.copytree(ROOT / "training", folder / "training", ignore=shutil.ignore_patterns("__pycache__"))
    with open(package / "data_files.py", "a") as stream:
        stream.write(f"\n\nPART_BYTES = {part_bytes}\n")
    (folder / "train.json").write_text(job.model_dump_json())
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "training.train", "train.json"], cwd=folder, capture_output=True, text=True,
        timeout=240, env={**environment, "TMPDIR": str(folder), "RAY_TMPDIR": "/tmp"}, check=False)


@pytest.mark.long
def test_ray_data_tokenises_in_parts_and_the_losses_are_those_of_one_node(tmp_path, make_job):
    write(tmp_path / "rows", "jsonl")
    job = make_job("jsonl", world=2, steps=4)
    for name in ("job", "bad"):
        (tmp_path / name).mkdir()
    ended = run_job(tmp_path / "job", job, part_bytes=300)
    assert ended.returncode == 0, ended.stderr
    made = list((tmp_path / "runs").glob("tokens-*/part-*/index.json"))
    assert len(made) > 5
    assert f"on the cluster's CPUs: {len(made)} parts" in ended.stdout

    alone = job.model_dump(mode="json")
    alone["placement"]["storage"] = str(tmp_path / "alone")
    assert ranks.run(2, ranks_work, alone) == [None, None]
    assert ranks.losses(tmp_path / "runs" / "tiny") == ranks.losses(tmp_path / "alone" / "tiny")

    with open(tmp_path / "rows" / "b.jsonl", "a") as file:
        file.write('\n{"text": 3}')
    ended = run_job(tmp_path / "bad", job.model_copy(update={"name": "bad"}), part_bytes=300)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == (
        f"bad failed: training.data.path: {tmp_path}/rows/b.jsonl row 2: column text is int, not text")
    assert "worker group" not in ended.stdout + ended.stderr
