"""One answer of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from eagleray.gate.shape import Check
from ops.aws import FAILURES, Aws, CredentialsError, trouble

Status = Literal["ok", "note", "unknown", "failed"]


@dataclass(frozen=True)
class Finding:
    """What a check found.

    `note` works but is worth knowing, `unknown` could not be asked, `failed` would stop a deployment and says
    in `fix` what helps: a command where there is one. `zone` is None for what concerns the whole region.
    """

    check: str
    status: Status
    text: str
    fix: str = ""
    zone: str | None = None


@dataclass(frozen=True)
class Region:
    """A region of the account, as it is asked."""

    aws: Aws
    name: str
    account: str

    def client(self, service: str) -> Any:
        """The boto3 client of a service here."""
        return self.aws.client(service, self.name)


def found_by(check: Check, zone: str | None = None, name: str | None = None) -> Finding:
    """The answer of one of the checks that the deployment's gate shares."""
    return Finding(name or check.name, check.status, check.detail, check.fix, zone)


def worst(findings: Iterable[Finding]) -> Status:
    """The most serious status; a note is as good as ok."""
    found = {f.status for f in findings}
    if "failed" in found:
        return "failed"
    return "unknown" if "unknown" in found else "ok"


def answered(check: str, ask: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of `ask`; one `unknown` where AWS does not answer it, so that the other checks go on."""
    try:
        return list(ask())
    except CredentialsError:
        raise
    except FAILURES as error:
        why = trouble(error)
        return [Finding(check, "unknown", why.text, why.fix)]
