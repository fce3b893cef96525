"""Files of a disk, of S3 and of the Hub, whole and in parts: the same documents however they are shared out."""

import json
import os

import boto3
import numpy as np
import pyarrow
import pytest
from local_hub import COMMIT, TOKEN, LocalHub, serving
from moto.server import ThreadedMotoServer
from pyarrow import fs, parquet

from training import data_files, documents, token_files
from training.config import DataConfig, ModelConfig
from training.data import read_tokens
from training.errors import JobError


def texts(data, found=None):
    """What the documents say, part by part."""
    found = found or data_files.find_files(data)
    return [document.value for part in data_files.parts(found)
            for document in documents.documents(found, part, data)]


@pytest.mark.parametrize("part_bytes", [17, 64, 1000, 1 << 20])
@pytest.mark.parametrize("piece", [50, 1 << 20])
@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_parts_of_a_file_hold_each_row_once_and_in_order(tmp_path, monkeypatch, kind, piece, part_bytes):
    monkeypatch.setattr(data_files, "PART_BYTES", part_bytes)
    monkeypatch.setattr(documents, "_PIECE", piece)
    rows = [f"row {i} " + "x" * (i * 37 % 90) for i in range(40)]
    if kind == "text":
        (tmp_path / "a.txt").write_text("\n".join(rows))
        assert "".join(texts(DataConfig(kind="text", path=str(tmp_path)))) == "\n".join(rows)
        return
    if kind == "jsonl":
        (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    else:
        parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet", row_group_size=3)
    (tmp_path / f"b.{kind}").write_bytes((tmp_path / f"a.{kind}").read_bytes())
    assert texts(DataConfig(kind=kind, path=str(tmp_path))) == rows * 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_bad_row_in_the_middle_of_a_file_is_named_by_its_own_number(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(data_files, "PART_BYTES", 100)
    rows = [{"text": f"row {i}"} for i in range(60)] + [{"text": None}]
    if kind == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=5)
    with pytest.raises(JobError, match=rf"a\.{kind} row 61: column text is NoneType, not text"):
        texts(DataConfig(kind=kind, path=str(tmp_path)))


def test_a_piece_of_text_begins_and_ends_its_document_once(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "PART_BYTES", 40)
    (tmp_path / "a.txt").write_text("a line of text\n" * 20)
    data = DataConfig(kind="text", path=str(tmp_path))
    found = data_files.find_files(data)
    parts = data_files.parts(found)
    marks = [(one.begins, one.ends) for part in parts for one in documents.documents(found, part, data)]
    assert len(parts) > 3
    assert marks[0] == (True, False)
    assert marks[-1] == (False, True)
    assert set(marks[1:-1]) == {(False, False)}


@pytest.fixture
def bucket(monkeypatch):
    """A bucket of moto's server: real HTTP, but no S3. pyarrow finds it by AWS_ENDPOINT_URL."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test",
                        "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    filesystem = fs.S3FileSystem(endpoint_override=f"{host}:{port}", scheme="http", region="us-east-1",
                                 allow_bucket_creation=True)
    filesystem.create_dir("corpus-bucket")
    try:
        yield filesystem, f"?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


def put(filesystem, path, content):
    with filesystem.open_output_stream(path) as stream:
        stream.write(content)


def test_a_prefix_of_s3_is_read_in_parts(bucket, monkeypatch):
    filesystem, options = bucket
    monkeypatch.setattr(data_files, "PART_BYTES", 100)
    rows = [f"row {i}" for i in range(50)]
    lines = [json.dumps({"text": row}) + "\n" for row in rows]
    put(filesystem, "corpus-bucket/data/b.jsonl", "".join(lines[20:]).encode())
    put(filesystem, "corpus-bucket/data/a.jsonl", "".join(lines[:20]).encode())
    put(filesystem, "corpus-bucket/data/note.md", b"no rows")
    assert texts(DataConfig(kind="jsonl", path="s3://corpus-bucket/data" + options)) == rows
    put(filesystem, "corpus-bucket/data/b.jsonl", b"{\n")
    with pytest.raises(JobError, match=r"s3://corpus-bucket/data/b\.jsonl row 1 is not JSON"):
        texts(DataConfig(kind="jsonl", path="s3://corpus-bucket/data" + options))
    with pytest.raises(JobError, match=r"^training\.data\.path s3://corpus-bucket/none\S* does not exist"):
        texts(DataConfig(kind="jsonl", path="s3://corpus-bucket/none" + options))


def test_keys_of_s3_lead_nowhere_but_into_the_folder_of_the_tokens(bucket, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "cache" / "node"))
    (tmp_path / "cache" / "node").mkdir(parents=True)
    filesystem, options = bucket
    tokens = np.array([3, 4], np.uint32), np.array([True, True])
    token_files.write(tmp_path / "made", [(documents.Document(documents.Place("a", 1), ""), tokens)], {})
    for file in (tmp_path / "made").iterdir():
        put(filesystem, f"corpus-bucket/tokens/{file.name}", file.read_bytes())
    s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for key in ("../../out.bin", "../../../out.bin", "/out.bin", "//out.bin", "..\\out.bin", "a/../../../out.bin",
                "\x01\x1b[2J", "index.json/../../out.bin"):
        s3.put_object(Bucket="corpus-bucket", Key=f"tokens/{key}", Body=b"hostile")
    found = read_tokens(DataConfig(kind="tokens", path="s3://corpus-bucket/tokens" + options), ModelConfig())
    assert found.tokens.tolist() == [3, 4]
    on_disk = [file for file in (tmp_path / "cache").rglob("*") if file.is_file() and file.suffix != ".lock"]
    assert sorted(file.name for file in on_disk) == ["index.json", "starts.bin", "tokens.bin"]
    assert len({file.parent for file in on_disk}) == 1
    assert not list(tmp_path.parent.rglob("*out.bin"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the Hub with the dataset `our/rows`."""
    folder = tmp_path / "rows"
    (folder / "data").mkdir(parents=True)
    for name, text in (("train-00000-of-00001", "learn"), ("test-00000-of-00001", "ask"), ("constraints", "no")):
        parquet.write_table(pyarrow.table({"text": [text]}), folder / "data" / f"{name}.parquet")
    found = LocalHub()
    found.repositories["datasets/our/rows"] = folder
    with serving(found):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", found.url)
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
                            found.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield found


def test_a_split_of_a_dataset_is_read_at_the_commit_that_was_found(hub):
    data = DataConfig(kind="hub", path="our/rows")
    found = data_files.find_files(data)
    assert found.commit == COMMIT
    assert texts(data, found) == ["learn"]
    assert texts(data.model_copy(update={"split": "test"})) == ["ask"]
    with pytest.raises(JobError, match=r"training\.data\.split validation: dataset our/rows has train, test"):
        data_files.find_files(data.model_copy(update={"split": "validation"}))
    with pytest.raises(JobError, match=r"has no revision v9 on the Hub; set training\.data\.revision to one of"):
        data_files.find_files(data.model_copy(update={"revision": "v9"}))
    hub.gated.add("datasets/our/rows")
    with pytest.raises(JobError, match=r"^training\.data\.path our/rows is gated: .* HF_TOKEN"):
        data_files.find_files(data)
    assert os.environ.get("HF_TOKEN") != TOKEN


NAMES = ["README.md", "train/a.parquet", "en/train.jsonl", "en/dev.jsonl", "fr/train.jsonl", "retraining.parquet"]
CONFIGS = [
    {"config_name": "en", "data_files": [{"split": "train", "path": "en/t*"}, {"split": "dev", "path": "*/dev*"}]},
    {"config_name": "fr", "data_files": "fr/*.jsonl"}]


@pytest.mark.parametrize(("configs", "chosen", "expected"), [
    (CONFIGS, {"subset": "en"}, ["en/train.jsonl"]),
    (CONFIGS, {"subset": "en", "split": "dev"}, ["en/dev.jsonl"]),
    (CONFIGS, {"subset": "fr"}, ["fr/train.jsonl"]),
    ([{**CONFIGS[0], "default": True}, CONFIGS[1]], {}, ["en/train.jsonl"]),
    (CONFIGS[:1], {}, ["en/train.jsonl"]),
    ([], {}, ["train/a.parquet", "en/train.jsonl", "fr/train.jsonl"]),
    ([], {"split": "validation"}, ["en/dev.jsonl"]),
    (CONFIGS, {}, "dataset our/rows has en, fr; name one of them"),
    (CONFIGS, {"subset": "en", "split": "test"}, "training.data.split test: dataset our/rows has train, dev"),
    ([], {"subset": "en"}, "has no subsets; remove it"),
])
def test_the_card_says_which_files_are_of_a_split_and_else_their_names(configs, chosen, expected):
    data = DataConfig(kind="hub", path="our/rows", **chosen)
    if isinstance(expected, str):
        with pytest.raises(JobError, match=expected):
            data_files.split_files(NAMES, configs, data)
    else:
        assert data_files.split_files(NAMES, configs, data) == expected


def test_a_dataset_whose_files_say_nothing_is_all_for_training():
    data = DataConfig(kind="hub", path="our/rows")
    assert data_files.split_files(["a.parquet", "b.parquet"], [], data) == ["a.parquet", "b.parquet"]
