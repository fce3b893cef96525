"""A cluster for the commands that ask one, and their command line."""

import sys

import pytest

from ops import cli
from ops.preflight import registry
from tests.ops.fake_kubernetes import FakeKubernetes


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A cluster that speaks HTTP, and that KUBECONFIG names."""
    fake = FakeKubernetes()
    monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig(tmp_path / "kubeconfig")))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield fake
    fake.close()


@pytest.fixture
def eagleray(monkeypatch):
    """`eagleray("check", file)`: the command as typed; its exit code."""
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["eagleray", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code or 0
    return run


@pytest.fixture
def public_registry(monkeypatch):
    """The public registry has every image."""
    monkeypatch.setattr(registry, "manifest_status", lambda *_: 200)
