"""An API server of a few objects with an operator behind it, spoken to over HTTP by the unpatched client."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

RUNNING = {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
SUCCEEDED = {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
TOKEN = "let-me-in"
_MERGE = "application/strategic-merge-patch+json"
_PATH = re.compile(r"/(?:api/v1|apis/ray\.io/v1)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>\w+)"
                   r"(?:/(?P<name>[^/?]+))?(?P<log>/log)?$")


class FakeKubernetes:
    """Set `statuses` (what a new RayJob goes through, one a look) and `on_look` before a job is made."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.made: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.statuses: list[dict[str, Any]] = [{}, RUNNING, SUCCEEDED]
        self.on_look: Callable[[dict[str, Any]], None] = lambda job: None
        self.log = "step 1/30\nstep 2/30\n"
        self.logs: dict[str, str] = {}
        """By pod, in place of `log`."""
        self.refuse: Callable[[str, str], int | None] = lambda method, path: None
        self.looks_to_be_gone = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        """Write a kubeconfig for this server."""
        path.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "fake",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "c", "user": "u"}}]}))
        return path

    def add(self, manifest: dict[str, Any], **status: Any) -> None:
        """Put an object there, as if deployed. As soon as pods are, there are no others."""
        plural = f"{manifest['kind'].lower()}s"
        stored = json.loads(json.dumps({**manifest, **({"status": status} if status else {})}))
        self.objects[manifest["metadata"].get("namespace"), plural, manifest["metadata"]["name"]] = stored

    def names(self, plural: str) -> list[str]:
        return [name for _, kind, name in self.objects if kind == plural]

    def answer(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, Any]:
        """Status code and JSON (or text) for a request."""
        if (refused := self.refuse(method, path)) is not None:
            return refused, {"kind": "Status", "message": f"refused with {refused}"}
        found = _PATH.match(path.partition("?")[0])
        if not found:
            return 404, {"kind": "Status", "message": "no such path"}
        namespace, plural, name = found["namespace"], found["plural"], found["name"]
        if plural == "pods":
            return self._read_log(namespace, name) if found["log"] else (200, self._pods(namespace, path))
        if method == "POST":
            return self._create(namespace, plural, body or {})
        if name is None:
            items = [o for (ns, kind, _), o in self.objects.items() if (ns, kind) == (namespace, plural)]
            return 200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}
        stored = self.objects.get((namespace, plural, name))
        if stored is None:
            return 404, {"kind": "Status", "message": f"{plural} {name} not found"}
        if method == "PATCH":
            return self._own(stored, body or {})
        return self._delete(plural, stored) if method == "DELETE" else (200, self._look(plural, stored))

    def _create(self, namespace: str, plural: str, body: dict[str, Any]) -> tuple[int, Any]:
        key = (namespace, plural, body["metadata"]["name"])
        if key in self.objects:
            return 409, {"kind": "Status", "message": f"{key[2]} already exists"}
        self.objects[key] = body
        body["metadata"]["uid"] = f"uid-of-{key[2]}"
        self.made.append(body)
        body["script"] = list(self.statuses) if plural == "rayjobs" else []
        return 201, body

    def _own(self, stored: dict[str, Any], body: dict[str, Any]) -> tuple[int, Any]:
        """A strategic merge of ownerReferences, whose merge key is the uid; nothing else is patched here."""
        owners = stored["metadata"].setdefault("ownerReferences", [])
        new = body["metadata"]["ownerReferences"]
        owners[:] = [o for o in owners if o["uid"] not in {n["uid"] for n in new}] + new
        return 200, stored

    def _look(self, plural: str, stored: dict[str, Any]) -> dict[str, Any]:
        if "deletionTimestamp" in stored["metadata"]:
            stored["left"] -= 1
            if stored["left"] <= 0:
                self._gone(plural, stored)
        elif stored.get("script"):
            stored["status"] = stored["script"].pop(0)
            self.on_look(stored)
        return stored

    def _delete(self, plural: str, stored: dict[str, Any]) -> tuple[int, Any]:
        self.deleted.append(f"{plural}/{stored['metadata']['name']}")
        if plural == "rayjobs" and self.looks_to_be_gone:  # a finalizer
            stored["metadata"]["deletionTimestamp"] = "2026-12-02T12:00:00Z"
            stored["left"] = self.looks_to_be_gone
        else:
            self._gone(plural, stored)
        return 200, {"kind": "Status", "status": "Success"}

    def _gone(self, plural: str, stored: dict[str, Any]) -> None:
        metadata = stored["metadata"]
        self.objects.pop((metadata["namespace"], plural, metadata["name"]), None)
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """What had owners, none of which is left, goes too."""
        uids = {stored["metadata"].get("uid") for stored in self.objects.values()}
        for key, stored in list(self.objects.items()):
            owners = stored["metadata"].get("ownerReferences")
            if owners and not any(owner["uid"] in uids for owner in owners):
                del self.objects[key]

    def _read_log(self, namespace: str, pod: str) -> tuple[int, Any]:
        if "pods" in {kind for _, kind, _ in self.objects} and (namespace, "pods", pod) not in self.objects:
            return 404, {"kind": "Status", "message": f"pods {pod} not found"}
        return 200, self.logs.get(pod, self.log)

    def _pods(self, namespace: str, path: str) -> dict[str, Any]:
        added = [o for (_, kind, _), o in self.objects.items() if kind == "pods"]
        if added:
            wanted = parse_qs(urlsplit(path).query).get("labelSelector", [""])[0]
            items = [o for o in added if o["metadata"]["namespace"] == namespace and _selected(wanted, o)]
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        job = re.search(r"job-name%3D([\w-]+)", path)
        pod = {"metadata": {"name": f"{job[1] if job else 'x'}-abcde"}, "status": {"phase": "Running"}}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                code, answer = 401, {"kind": "Status", "message": "Unauthorized"}
                if self.headers.get("Authorization") == f"Bearer {TOKEN}":
                    code, answer = fake.answer(self.command, self.path, body)
                if self.command == "PATCH" and self.headers["Content-Type"] != _MERGE:
                    code, answer = 415, {"kind": "Status", "message": f"only {_MERGE} is understood here"}
                data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


def _selected(selector: str, manifest: dict[str, Any]) -> bool:
    """Whether a label selector (`a=b,c in (d,e)`) means this object."""
    labels = manifest["metadata"].get("labels", {})
    for part in re.findall(r"[^,(]+(?:\([^)]*\))?", selector):
        key, _, listed = part.strip().partition(" in ")
        values = listed.strip("()").split(",") if listed else [key.partition("=")[2]]
        if labels.get(key.partition("=")[0]) not in values:
            return False
    return True
