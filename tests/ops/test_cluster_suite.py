"""The logic of tests/cluster against an API server that knows a few kinds and stores what it is told."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from tests.cluster.applying import NoClusterError, UnknownKindError, apply_and_remove, connect

_KINDS = {"v1": [("namespaces", "Namespace", False), ("configmaps", "ConfigMap", True)],
          "apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition", False)],
          "ray.io/v1": [("rayjobs", "RayJob", True)]}


class ApiServer:
    """`stored`: objects by path; `asked`: the queries of all patches; `refused`: a name that it will not have."""

    def __init__(self):
        self.stored, self.asked, self.refused, self.served = {}, [], None, dict(_KINDS)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method, url, body):
        """Status code and answer for a request."""
        path, query = url.path.rstrip("/"), parse_qs(url.query)
        if path == "/version":
            return 200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
                         "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        groups = [name.partition("/") for name in self.served if "/" in name]
        if path == "/apis":
            return 200, {"kind": "APIGroupList", "groups": [
                {"name": group, "preferredVersion": {"version": version},
                 "versions": [{"version": version, "groupVersion": f"{group}/{version}"}]}
                for group, _, version in groups]}
        for name, kinds in self.served.items():
            if path == ("/apis/" if "/" in name else "/api/") + name:
                return 200, {"kind": "APIResourceList", "groupVersion": name, "resources": [
                    {"name": plural, "kind": kind, "namespaced": inside, "singularName": kind.lower(),
                     "verbs": ["get", "patch", "delete"]} for plural, kind, inside in kinds]}
        if method == "PATCH":
            self.asked.append(query)
            if body["metadata"]["name"] == self.refused:
                return 422, {"kind": "Status", "message": "strict decoding error"}
            if "dryRun" not in query:
                self.stored[path] = {**body, "status": {"conditions": [{"type": "Established", "status": "True"}]}}
            return 200, body
        if path not in self.stored:
            return 404, {"kind": "Status", "message": "not found"}
        return 200, self.stored.pop(path) if method == "DELETE" else self.stored[path]

    def _handler(self):
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = yaml.safe_load(self.rfile.read(length)) if length else None
                code, answer = fake.answer(self.command, urlsplit(self.path), body)
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PATCH = do_DELETE = _serve  # noqa: N815

            def log_message(self, format, *args):
                pass

        return Handler


def kubeconfig(path, port):
    path.write_text(yaml.safe_dump({
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
    return str(path)


@pytest.fixture
def server(tmp_path, monkeypatch):
    fake = ApiServer()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "kubeconfig", fake.server.server_port))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the client keeps what a server knows, by its address
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def manifest(kind, name, api_version="v1"):
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "namespace": "ray"}}


OURS = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ray"}}, manifest("ConfigMap", "code"),
        manifest("RayJob", "job", "ray.io/v1")]


@pytest.fixture
def crds(tmp_path):
    (tmp_path / "crds").mkdir()
    for name in ("rayclusters.ray.io", "rayjobs.ray.io"):
        crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        (tmp_path / "crds" / f"{name}.yaml").write_text(yaml.safe_dump({**crd, "metadata": {"name": name}}))
    return tmp_path / "crds"


def test_a_dry_run_is_strict_and_stores_nothing(server):
    for one in OURS:
        connect().dry_run(one)
    assert len(server.asked) == 3
    assert all((query["dryRun"], query["fieldValidation"]) == (["All"], ["Strict"]) for query in server.asked)
    assert server.stored == {}


def test_a_cluster_without_kuberay_and_no_cluster_say_so(server, tmp_path, monkeypatch):
    del server.served["ray.io/v1"]
    with pytest.raises(UnknownKindError, match="knows no RayJob"):
        connect().dry_run(OURS[2])
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(NoClusterError, match="names no cluster that answers"):
        connect()


@pytest.mark.parametrize("refused", [None, "job"])
def test_what_was_made_goes_again_also_where_one_object_is_refused_and_nothing_else_does(server, crds, refused):
    kept = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayjobs.ray.io"
    server.stored[kept] = there_before = {"kind": "CustomResourceDefinition"}
    server.refused = refused
    if refused:
        with pytest.raises(ApiException, match="strict decoding error"):
            apply_and_remove(connect(), OURS, crds)
    else:
        assert apply_and_remove(connect(), OURS, crds) == ["ConfigMap/code", "RayJob/job"]
    assert server.stored == {kept: there_before}
    assert len(server.asked) == 4  # one CRD, the namespace, two objects; our own Namespace is none of it
