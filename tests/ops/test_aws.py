"""Calls to AWS that fail for a while, or for good: real clients against a server on this machine."""

import http.server
import threading
import time

import pytest
from botocore.exceptions import ClientError

from ops import aws
from ops.aws import FAILURES, Aws, CredentialsError, trouble

WHO = b"""<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:iam::123456789012:user/ann</Arn><UserId>A</UserId><Account>123456789012</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""


def refusal(code):
    return (400, f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>".encode())


@pytest.fixture
def server(monkeypatch):
    """Answers each request with the next of `answers`; the last one again and again."""
    class Handler(http.server.BaseHTTPRequestHandler):
        answers, asked = [], 0

        def do_POST(self):
            status, body = Handler.answers[min(Handler.asked, len(Handler.answers) - 1)]
            Handler.asked += 1
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format, *args):
            pass

    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{listening.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAFAKE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "fake")
    pause = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: pause(min(seconds, 0.01)))  # botocore's pauses
    yield Handler
    listening.shutdown()
    listening.server_close()


def ask():
    return Aws().client("sts", "us-east-2").get_caller_identity()


@pytest.mark.parametrize("failure", [refusal("Throttling"), refusal("RequestLimitExceeded"), (503, b"")])
def test_a_call_that_is_throttled_or_fails_for_a_while_is_repeated(server, failure):
    server.answers = [failure, failure, (200, WHO)]
    assert ask()["Account"] == "123456789012"
    assert server.asked == 3


def test_throttling_without_end_is_told_after_four_attempts(server):
    server.answers = [refusal("Throttling")]
    with pytest.raises(ClientError) as error:
        ask()
    assert server.asked == 4
    assert trouble(error.value).kind == "throttled"


@pytest.mark.parametrize(("code", "kind"), [
    ("ExpiredToken", "credentials"), ("InvalidClientTokenId", "credentials"),
    ("RequestTimeTooSkewed", "credentials"), ("AccessDenied", "permission"), ("ValidationError", "refused")])
def test_what_cannot_change_is_not_repeated(server, code, kind):
    server.answers = [refusal(code)]
    with pytest.raises(ClientError) as error:
        ask()
    assert server.asked == 1
    assert trouble(error.value).kind == kind


def test_an_endpoint_that_is_away_is_no_answer(server, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")  # discard: nobody listens
    with pytest.raises(FAILURES) as error:
        ask()
    assert trouble(error.value).kind == "unreachable"


def test_no_credentials_and_a_profile_that_is_not_there_say_what_to_do(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(FAILURES) as error:
        ask()
    found = trouble(error.value)
    assert found.kind == "credentials"
    assert "aws sso login" in found.fix
    monkeypatch.setenv("AWS_PROFILE", "nope")
    with pytest.raises(CredentialsError, match=r"nope.*aws configure list-profiles"):
        aws.Aws()
