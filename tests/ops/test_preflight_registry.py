"""The training image is asked for as a node asks: anonymously, by manifest, with a token where one is wanted."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from fake_aws import FakeAws

from ops.preflight import registry


class Registry(BaseHTTPRequestHandler):
    """Speaks the distribution protocol as public registries do."""

    images = ("library/ray:2",)
    wants_token = True

    def do_HEAD(self):
        repository, tag = self.path.removeprefix("/v2/").split("/manifests/")
        if self.wants_token and self.headers.get("Authorization") != "Bearer anonymous":
            self.send_response(401)
            realm = f'Bearer realm="http://127.0.0.1:{self.connection.getsockname()[1]}/token",service="here"'
            self.send_header("WWW-Authenticate", realm)
        else:
            self.send_response(200 if f"{repository}:{tag}" in self.images else 404)
        self.end_headers()

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "anonymous"}).encode())

    def log_message(self, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@pytest.fixture
def base():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_image_behind_an_anonymous_token_is_found(base):
    assert registry.manifest_status(base, "library/ray", "2") == 200


def test_an_image_that_is_not_there_is_404(base):
    assert registry.manifest_status(base, "library/ray", "3") == 404


@pytest.mark.parametrize(("image", "expected"), [
    ("ray", ("docker.io", "library/ray", "latest")),
    ("rayproject/ray:2.58.0", ("docker.io", "rayproject/ray", "2.58.0")),
    ("public.ecr.aws/a/ray:x", ("public.ecr.aws", "a/ray", "x")),
    ("host:5000/ray@sha256:ab", ("host:5000", "ray", "sha256:ab")),
])
def test_an_image_name_is_read_as_container_runtimes_read_it(image, expected):
    assert registry.parts(image) == expected


@pytest.mark.parametrize(("status", "found", "text"), [
    (200, "ok", "example.org/x:1"), (404, "failed", "does not exist"), (401, "failed", "wants credentials"),
    (503, "unknown", "answers 503")])
def test_what_a_registry_answers_is_told(monkeypatch, status, found, text):
    monkeypatch.setattr(registry, "manifest_status", lambda *_: status)
    finding, = registry.training_image(FakeAws(), "example.org/x:1")
    assert (finding.status, text in finding.text) == (found, True)


def test_a_registry_that_cannot_be_reached_is_unknown(monkeypatch):
    def refuse(*_):
        raise OSError("no route")

    monkeypatch.setattr(registry, "manifest_status", refuse)
    finding, = registry.training_image(FakeAws(), "example.org/x:1")
    assert finding.status == "unknown"
