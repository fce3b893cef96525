"""Rows of data from hostile hands: one clear line that names file and row, and no memory filled."""

import gzip
import random
import tracemalloc

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from training import documents, parquet_pages, parquet_rows
from training.config import DataConfig
from training.data_files import find_files, parts
from training.errors import JobError


def read(path, **data):
    """The values of a file, one at a time."""
    config = DataConfig(path=str(path), **data)
    found = find_files(config)
    for part in parts(found):
        yield from (one.value for one in documents.documents(found, part, config))


def test_a_packed_row_that_unpacks_without_end_is_named_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "MOST_ROW", 3 << 20)
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.GzipFile(path, "wb") as stream:
        stream.write(b'{"text": "good"}\n{"text": "')
        for _ in range(32):
            stream.write(b"a" * (1 << 20))
        stream.write(b'"}\n')
    rows = read(path, kind="jsonl")
    assert next(rows) == "good"
    with pytest.raises(JobError, match=r"bomb\.jsonl\.gz row 2 unpacks into more than 3 MiB"):
        next(rows)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "txt"])
def test_a_line_without_end_takes_no_more_memory_and_time_than_a_row_may(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(documents, "_PIECE", 1 << 10)
    monkeypatch.setattr(documents, "MOST_ROW", 1 << 20)
    path = tmp_path / f"line.{ending}"
    content = b'{"text": "good"}\n{"text": "' + b"a" * (1 << 19) + b'"}\n' + b"a" * (8 << 20)
    path.write_bytes(gzip.compress(content, 1) if ending.endswith("gz") else content)
    sizes = []

    class Counted:
        """pyarrow's stream, each read of which is counted."""

        def __init__(self, stream):
            self.stream = stream

        def read(self, size):
            sizes.append(size)
            return self.stream.read(size)

    whole = documents._whole_lines
    monkeypatch.setattr(documents, "_whole_lines", lambda stream, *rest: whole(Counted(stream), *rest))
    tracemalloc.start()
    try:
        with pytest.raises(JobError, match=rf"line\.{ending} row 3 unpacks into more than 1 MiB"):
            list(read(path, kind="text" if ending == "txt" else "jsonl"))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(sizes) < 3 << 20
    assert most < 6 << 20


@pytest.mark.parametrize(("line", "message"), [
    (b"[" * 200_000, "row 1 is not JSON .maximum recursion depth"),
    (b'{"text": [' + b"{}," * (2 << 20) + b"{}]}", "row 1 unpacks into more than 64 MiB, or too many values"),
], ids=["deep", "many"])
def test_a_row_of_json_whose_objects_fill_the_memory_is_named(tmp_path, line, message):
    (tmp_path / "a.jsonl").write_bytes(line + b"\n")
    with pytest.raises(JobError, match=message):
        next(read(tmp_path / "a.jsonl", kind="jsonl"))
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "' + b"[{,\\\"" * (1 << 20) + b'"}\n')
    assert len(next(read(tmp_path / "a.jsonl", kind="jsonl"))) == 4 << 20


@pytest.fixture
def pool(monkeypatch):
    """pyarrow's memory, counted anew, of which a row may take 2 MiB and reading it 4."""
    for module, name, size in ((documents, "MOST_ROW", 2), (parquet_rows, "MOST_ROW", 2),
                               (parquet_rows, "MOST_BYTES", 4), (parquet_pages, "MOST_BYTES", 4)):
        monkeypatch.setattr(module, name, size << 20)
    monkeypatch.setattr(parquet_rows, "MOST_PARTS", 1000)
    old = pyarrow.default_memory_pool()
    counted = pyarrow.proxy_memory_pool(old)
    pyarrow.set_memory_pool(counted)
    yield counted
    pyarrow.set_memory_pool(old)


def repeated(value, count):
    """An array of one value many times, which has little to write down."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(count, np.int32)), pyarrow.array([value]))


def one_list(values):
    """A single row: a list of them."""
    return pyarrow.ListArray.from_arrays(pyarrow.array([0, len(values)], pyarrow.int32()), values)


def write(path, values, **options):
    """A Parquet file with one column. Returns what it needs on the disk."""
    parquet.write_table(pyarrow.table({"text": values}), path, compression="zstd", store_schema=False, **options)
    return path.stat().st_size


PLAIN = {"use_dictionary": False, "data_page_size": 1 << 16, "write_batch_size": 8}
DELTA = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
LONG = "a" * 50_000


@pytest.mark.parametrize(("values", "options", "message"), [
    (one_list(repeated("a" * 1500, 200_000)), {}, "row 1 unpacks into more than 2 MiB"),
    (one_list(repeated("a" * 1500, 200_000)), {"data_page_version": "2.0"}, "row 1 unpacks into more than 2 MiB"),
    (one_list(repeated("", 200_000)), {}, "row 1 unpacks into .* too many values"),
    (one_list(repeated(7, 1_000_000)), {}, "after row 0 .*a row may need 15 MiB"),
    (pyarrow.array([["one"], [f"{number} {LONG}" for number in range(200)]]), PLAIN, "after row 0 .*a page would"),
    (pyarrow.array([[LONG] * 400]), DELTA, "after row 0 .*no DELTA_BYTE_ARRAY in lists"),
    (pyarrow.array(["one", "a" * (20 << 20)]), PLAIN, "after row 0 .*a page would unpack into 20 MiB and 2 values"),
    (pyarrow.array(["one", "a" * (3 << 20)]), PLAIN, "row 2 unpacks into more than 2 MiB"),
    (pyarrow.array([None], pyarrow.binary(20 << 20)), {}, "after row 0 .*a row may need 20 MiB"),
], ids=["entry of a dictionary", "the same in newer pages", "empty texts", "numbers", "list", "prefixes",
        "page", "value", "nothing"])
def test_a_parquet_row_that_unpacks_without_end_is_named_before_it_fills_the_memory(
        tmp_path, pool, values, options, message):
    path = tmp_path / "bomb.parquet"
    assert write(path, values, **options) < 20_000
    before = pool.max_memory()
    with pytest.raises(JobError, match=rf"bomb\.parquet {message}"):
        list(read(path, kind="parquet", column="text", rows="messages" if values.type.num_fields else "text"))
    assert pool.max_memory() - before < 16 << 20


@pytest.mark.parametrize(("values", "options"), [
    (repeated("a" * (1 << 20), 100), {}),
    (pyarrow.array(["a" * (1 << 20)] * 100), DELTA),
], ids=["dictionary", "prefixes"])
def test_small_rows_are_read_however_much_they_all_unpack_into(tmp_path, pool, values, options):
    path = tmp_path / "large.parquet"
    assert write(path, values, **options) < 2000
    before = pool.max_memory()
    assert sum(len(value) for value in read(path, kind="parquet")) == 100 << 20
    assert pool.max_memory() - before < 16 << 20


def test_a_list_that_goes_on_over_many_pages_counts_as_one_row():
    """pyarrow begins a row with each page; other writers need not."""
    def needed(begins, rows):
        found = [parquet_pages.Page(1000, 0, 0, count) for count in begins]
        return parquet_rows._needed(found, 1, 16, False)(rows) // 1000

    assert needed([5, 5, 5, 5, 5, 5], 1) == 2  # it begins in one page and ends in the next
    assert needed([5, 5, 5, 5, 5, 5], 16) == 5
    assert needed([5, 0, 0, 0, 5, 5], 1) == 5
    assert needed([1, 1, 1, 1, 1, 1], 2) == 3
    assert needed([1, 0, 0, 0, 0, 0], 1) == 6


@pytest.mark.parametrize("options", [{}, PLAIN, {"data_page_version": "2.0", "row_group_size": 70}],
                         ids=["dictionary", "small pages", "newer pages"])
def test_chats_are_read_as_they_were_written_in_every_encoding(tmp_path, options):
    chats = [[{"role": "user", "content": f"{i} " * (i % 50)}, {"role": "assistant", "content": None}][: i % 3]
             for i in range(300)]
    for codec in ("none", "snappy", "gzip", "brotli", "lz4", "zstd"):
        table = pyarrow.table({"messages": chats, "other": [[1]] * 300})
        parquet.write_table(table, tmp_path / "a.parquet", compression=codec, **options)
        assert list(read(tmp_path / "a.parquet", kind="parquet", rows="messages")) == chats


def test_no_damage_of_a_parquet_file_is_a_traceback_or_ends_the_process(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, pyarrow.array([[f"text {i}"] for i in range(20)]))
    whole, draw = path.read_bytes(), random.Random(0)
    failures = []
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.randrange(256)
        path.write_bytes(damaged)
        try:
            list(read(path, kind="parquet", column="text", rows="messages"))
        except JobError as error:
            failures.append(str(error))
    assert len(failures) > 50
    assert all(failure.startswith("training.data.path") for failure in failures)
