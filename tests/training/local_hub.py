"""A stand-in for the Hub: the few endpoints that snapshot_download asks, over real HTTP on this machine.

What it answers to a wrong name or revision, and to a gated repository, has the headers by which
huggingface_hub tells them apart (huggingface_hub/utils/_http.py, hf_raise_for_status).
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_of_the_test"


class LocalHub:
    """Repositories by `models/<id>` or `datasets/<id>`, each a folder at one commit that `main` names too."""

    def __init__(self):
        self.repositories: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.url = ""
        self.downloads: list[str] = []
        """Paths of files whose contents were sent."""


@contextmanager
def serving(hub):
    """Serves `hub` on a free port and sets its url."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(sends=True)

    def do_HEAD(self):
        self._answer(sends=False)

    def _answer(self, sends):
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "api":
            return self._repository(parts[1:], sends)
        kind = parts.pop(0) if parts[0] == "datasets" else "models"
        name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        if self._refused(f"{kind}/{name}", revision, sends):
            return None
        path = self.hub.repositories[f"{kind}/{name}"] / file
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, sends)
        content = path.read_bytes()
        if sends:
            self.hub.downloads.append(f"{name}/{file}")
        return self._send(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                                         "X-Repo-Commit": COMMIT}, sends)

    def _repository(self, parts, sends):
        repository, revision = "/".join(parts[:3]), parts[4] if len(parts) > 4 else "main"
        if self._refused(repository, revision, sends):
            return
        folder = self.hub.repositories[repository]
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        if len(parts) > 3 and parts[3] == "tree":
            answer = [{"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": "0"}
                      for name in files]
        else:
            answer = {"id": "/".join(parts[1:3]), "sha": COMMIT, "private": False,
                      "siblings": [{"rfilename": name} for name in files]}
        self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"}, sends)

    def _refused(self, repository, revision, sends):
        if repository not in self.hub.repositories:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, sends)
        elif repository in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, sends)
        elif revision not in ("main", COMMIT):
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, sends)
        else:
            return False
        return True

    def _send(self, status, content, headers, sends):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if sends:
            self.wfile.write(content)

    def log_message(self, format, *args):
        pass
