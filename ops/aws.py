"""AWS as a command asks it: clients that answer or give up within seconds, and failures in a person's words."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Literal

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    SSOError,
    TokenRetrievalError,
)

from ops.errors import NothingToDoError

# Throttled and dropped calls are repeated by botocore, with pauses; a dead endpoint costs at most 4 x 3 s.
_CONFIG = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 4},
                 max_pool_connections=40)

FAILURES = (BotoCoreError, ClientError)
"""What a call to AWS raises."""

_SIGN_IN = "sign in and try again: aws sso login, or aws configure; AWS_PROFILE names the profile"
_NOT_SIGNED_IN = (NoCredentialsError, PartialCredentialsError, ProfileNotFound, CredentialRetrievalError, SSOError,
                  TokenRetrievalError)
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired"}
_REFUSED_KEY = {"InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "InvalidAccessKeyId",
                "SignatureDoesNotMatch", "IncompleteSignature", "InvalidSignatureException"}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedException",
           "NotAuthorized", "AuthorizationError"}
_THROTTLED = {"Throttling", "ThrottlingException", "ThrottledException", "RequestLimitExceeded",
              "TooManyRequestsException", "RequestThrottled", "RequestThrottledException", "SlowDown"}


class CredentialsError(NothingToDoError):
    """There are no usable AWS credentials: nothing could be asked."""


@dataclass(frozen=True)
class Trouble:
    """Why a call brought no answer. `fix` says what helps, and may be empty."""

    kind: Literal["credentials", "permission", "throttled", "unreachable", "refused"]
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, [self.text, self.fix]))


class Aws:
    """Clients of one person's credentials, made once for each service and region. Threads may share it."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        try:
            self._session = boto3.Session(botocore_session=botocore.session.get_session())
        except ProfileNotFound as error:
            raise CredentialsError(f"{error}; aws configure list-profiles shows those there are") from None

    def client(self, service: str, region: str) -> Any:
        """The boto3 client. Making one is not safe in threads, using one is.

        Raises:
            CredentialsError: if the credentials cannot even be read.
        """
        with self._lock:
            if (service, region) not in self._clients:
                try:
                    self._clients[service, region] = self._new(service, region)
                except _NOT_SIGNED_IN as error:
                    raise CredentialsError(trouble(error).text + "; " + _SIGN_IN) from None
            return self._clients[service, region]

    def _new(self, service: str, region: str) -> Any:
        return self._session.client(service, region_name=region, config=_CONFIG)  # pyright: ignore[reportCallIssue, reportArgumentType]


def error_code(error: Exception) -> str:
    """AWS's code of a refused call, such as `AccessDenied`; empty for any other failure."""
    return error.response.get("Error", {}).get("Code", "") if isinstance(error, ClientError) else ""


def trouble(error: Exception) -> Trouble:
    """What a failure of a call means and what helps."""
    if isinstance(error, ClientError):
        return _refusal(error)
    if isinstance(error, _NOT_SIGNED_IN):
        return Trouble("credentials", f"no AWS credentials: {_sentence(error)}", _SIGN_IN)
    if isinstance(error, (ConnectTimeoutError, ReadTimeoutError, EndpointConnectionError, ConnectionClosedError)):
        return Trouble("unreachable", f"no answer from {_host(error)}", "try again; AWS's own state: "
                       "https://health.aws.amazon.com")
    if isinstance(error, HTTPClientError):
        return Trouble("unreachable", f"no connection: {_sentence(error)}", "look at proxy and TLS settings")
    return Trouble("refused", _sentence(error))


def _refusal(error: ClientError) -> Trouble:
    code, said = error_code(error), _sentence(error.response.get("Error", {}).get("Message", ""))
    if code in _EXPIRED:
        return Trouble("credentials", "the AWS credentials have expired", _SIGN_IN)
    if code in _REFUSED_KEY:
        return Trouble("credentials", f"AWS does not accept the credentials ({code})", _SIGN_IN)
    if code == "RequestTimeTooSkewed":
        return Trouble("credentials", "this machine's clock is wrong, so AWS refuses its signatures",
                       "set the clock, for example with timedatectl set-ntp true")
    if code in _DENIED:
        action = _action(error, said)
        return Trouble("permission", f"not permitted: {action}", f"allow your role the action {action}")
    if code in _THROTTLED:
        return Trouble("throttled", f"AWS throttles {error.operation_name}, also after 4 attempts",
                       "try again in a minute")
    return Trouble("refused", f"{error.operation_name}: {code}: {said}")


def _action(error: ClientError, said: str) -> str:
    """`ec2:DescribeVpcs` as AWS's own words name it, or the operation alone."""
    named = re.search(r"perform: ([\w-]+:\w+)", said)
    return named[1] if named else error.operation_name


def _host(error: Exception) -> str:
    url = str(getattr(error, "kwargs", {}).get("endpoint_url", "AWS"))
    return url.removeprefix("https://").split("/")[0]


def _sentence(error: object) -> str:
    return " ".join(str(error).split()).rstrip(".")
