"""The capacity gate's Lambda, asked as CloudFormation asks it, and the address that takes its answers."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from gate_aws import OWNER

from eagleray.gate import admission, handler, response


class CloudFormation:
    """The address that a custom resource answers to."""

    def __init__(self):
        self.answers, self.refuse = [], 0
        outer = self

        class Listener(BaseHTTPRequestHandler):
            def do_PUT(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if outer.refuse:
                    outer.refuse -= 1
                    self.send_response(503)
                else:
                    outer.answers.append((json.loads(body), self.headers.get("Content-Type"), len(body)))
                    self.send_response(200)
                self.end_headers()

            def log_message(self, *_):  # pyright: ignore[reportIncompatibleMethodOverride]
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Listener)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Context:
    """Lambda's context."""

    log_group_name = "/aws/lambda/gate"

    def __init__(self, seconds):
        self._seconds = seconds

    def get_remaining_time_in_millis(self):
        return 1000 * self._seconds


class Gate:
    """The Lambda in an account; `answer` is what CloudFormation got last."""

    def __init__(self, account, cloudformation):
        self.account, self.cloudformation, self.number = account, cloudformation, 0

    def __call__(self, kind, properties, before=None, physical_id=None, request=None, seconds=60):
        self.number += 1
        event = {
            "RequestType": kind, "RequestId": request or f"r{self.number}", "LogicalResourceId": "Gate",
            "StackId": OWNER.removesuffix("/Gate"), "ResourceProperties": {"ServiceToken": "arn", **properties},
            "ResponseURL": f"http://127.0.0.1:{self.cloudformation.server.server_port}/answer?signed=1",
            **({"PhysicalResourceId": physical_id} if physical_id else {}),
            **({"OldResourceProperties": {"ServiceToken": "old", **before}} if before is not None else {}),
        }
        handler.handler(event, Context(seconds))
        answer, _, _ = self.cloudformation.answers[-1]
        assert answer["RequestId"] == event["RequestId"]
        return answer


@pytest.fixture(scope="module")
def cloudformation():
    found = CloudFormation()
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def gate(monkeypatch, cloudformation):
    """Makes a gate for an account, at the account's time."""
    monkeypatch.setattr(admission, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(response.time, "sleep", lambda _: None)

    def make(account):
        class Clock(handler.datetime):
            @classmethod
            def now(cls, tz=None):
                return account.now

        monkeypatch.setattr(handler, "datetime", Clock)
        monkeypatch.setattr(handler.boto3, "client", account.client)
        return Gate(account, cloudformation)

    return make
