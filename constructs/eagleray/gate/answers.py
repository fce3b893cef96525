"""Errors of AWS's API as answers to a check: what cannot be asked is unknown, and stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from eagleray.gate.shape import Check

# Throttling and 5xx are tried again, with growing pauses; a service that does not answer is given up soon.
PATIENT = Config(connect_timeout=3, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 5})

NO_PERMISSION = "no permission"
_DENIED = {"UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "UnauthorizedException"}
_Asked = ParamSpec("_Asked")


def error_code(error: ClientError) -> str:
    """`InsufficientInstanceCapacity`."""
    return str(error.response.get("Error", {}).get("Code", ""))


def error_text(error: ClientError | BotoCoreError) -> str:
    """AWS's own words on one line, without boto's preamble."""
    message = error.response.get("Error", {}).get("Message") if isinstance(error, ClientError) else None
    return " ".join(str(message or error).split()).rstrip(".")


def denied(error: Exception) -> bool:
    """Whether AWS says that the permission is missing."""
    return isinstance(error, ClientError) and error_code(error) in _DENIED


def unknown_if_unasked(name: str) -> Callable[[Callable[_Asked, Check]], Callable[_Asked, Check]]:
    """Make a check answer `unknown` where AWS refuses to be asked, is not there or throttles to the end."""
    def decorate(ask: Callable[_Asked, Check]) -> Callable[_Asked, Check]:
        @wraps(ask)
        def asked(*args: _Asked.args, **kwargs: _Asked.kwargs) -> Check:
            try:
                return ask(*args, **kwargs)
            except (ClientError, BotoCoreError) as error:
                return unasked(name, error)
        return asked
    return decorate


def unasked(name: str, error: ClientError | BotoCoreError) -> Check:
    """The `unknown` answer for an error of AWS's API."""
    if not isinstance(error, ClientError):
        return Check(name, "unknown", f"AWS could not be asked ({error_text(error)})")
    if denied(error):
        return Check(name, "unknown", f"{NO_PERMISSION} to call {error.operation_name}",
                     f"allow {error.operation_name} to have this checked")
    return Check(name, "unknown", f"{error.operation_name} failed ({error_code(error)}: {error_text(error)})")


def pages(client: Any, operation: str, key: str, **request: Any) -> list[dict[str, Any]]:
    """All items under `key` of every page of an answer."""
    return [item for page in client.get_paginator(operation).paginate(**request) for item in page.get(key, [])]
