"""EFA counters out of sysfs: moved, still, or unavailable, which is never a zero."""

import pytest

from training import counters


def device(sysfs, name="rdmap0s6", **values):
    folder = sysfs / name / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for counter, value in values.items():
        (folder / counter).write_text(f"{value}\n")
    return folder


def node(name, **moved):
    return {"node": name, **moved}


def test_what_moved_is_summed_over_devices(tmp_path):
    device(tmp_path, tx_bytes=100, send_wrs=1, rx_drops=7)
    device(tmp_path, "rdmap0s7", tx_bytes=10)
    before = counters.read(tmp_path)
    device(tmp_path, tx_bytes=160, send_wrs=3, rx_drops=7)
    device(tmp_path, "rdmap0s7", tx_bytes=15)
    found = counters.moved(before, counters.read(tmp_path))
    assert found == {"status": "read", "devices": ["rdmap0s6/1", "rdmap0s7/1"],
                     "counters": {"tx_bytes": 65, "send_wrs": 2, "rx_drops": 0}}


def test_a_counter_that_cannot_be_read_is_left_out_and_not_zero(tmp_path):
    folder = device(tmp_path, tx_bytes=1, rx_bytes=2)
    (folder / "rx_bytes").unlink()
    (folder / "rx_bytes").mkdir()  # reading fails, for root as well
    assert counters.read(tmp_path).counters == {"rdmap0s6/1": {"tx_bytes": 1}}


@pytest.mark.parametrize(("make", "reason"), [
    (lambda sysfs: None, "does not exist: no EFA device is visible here"),
    (lambda sysfs: device(sysfs), "has EFA counters"),
    (lambda sysfs: (device(sysfs) / "tx_bytes").mkdir(), "tx_bytes cannot be read: Is a directory"),
    (lambda sysfs: device(sysfs, tx_bytes="n/a"), "tx_bytes cannot be read: invalid literal"),
])
def test_a_node_without_counters_is_unavailable(tmp_path, make, reason):
    sysfs = tmp_path / "infiniband"
    make(sysfs)
    found = counters.moved(counters.read(sysfs), counters.read(sysfs))
    assert found["status"] == "unavailable"
    assert reason in found["reason"]
    assert "counters" not in found


def test_a_device_that_was_reset_or_exchanged_is_unavailable(tmp_path):
    device(tmp_path, tx_bytes=100)
    before = counters.read(tmp_path)
    device(tmp_path, tx_bytes=5)
    assert "tx_bytes went backwards" in counters.moved(before, counters.read(tmp_path))["reason"]
    device(tmp_path, "rdmap0s7", tx_bytes=500)
    assert "other devices" in counters.moved(before, counters.read(tmp_path))["reason"]


def test_a_run_is_only_as_readable_as_its_least_readable_node():
    good = node("a", status="read", devices=["x/1"], counters={"tx_bytes": 5})
    bad = node("b", status="unavailable", reason="denied")
    assert counters.merge([good, {**good, "node": "c"}])["counters"] == {"tx_bytes": 10}
    found = counters.merge([good, bad])
    assert (found["status"], found["reason"]) == ("unavailable", "b: denied")
    assert "counters" not in found


def test_only_a_read_node_without_any_byte_is_still():
    nodes = [node("a", status="read", counters={"tx_bytes": 0, "send_bytes": 0, "rx_drops": 3}),
             node("b", status="read", counters={"tx_bytes": 0, "rdma_write_bytes": 9}),
             node("c", status="unavailable", reason="denied")]
    assert counters.still(nodes) == ["a"]
