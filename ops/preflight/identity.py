"""Who asks, and in which regions that person may ask at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.aws import FAILURES, Aws, CredentialsError, Trouble, trouble
from ops.errors import NothingToDoError
from ops.preflight.finding import Finding

# Enabled in every account of the standard partition: tells a wrong key from a region that is switched off.
_ALWAYS_ON = "us-east-1"


@dataclass(frozen=True)
class Identity:
    """Account id, and ARN of the person or role."""

    account: str
    arn: str


def identity(aws: Aws, regions: Sequence[str], pinned_account: str | None) -> Identity:
    """Whose credentials these are; asked where an answer comes first.

    Raises:
        CredentialsError: for none, expired or refused ones, and for those of another account than the settings'.
        NothingToDoError: if AWS cannot be reached.
    """
    first: Trouble | None = None
    for region in dict.fromkeys([*regions[:2], _ALWAYS_ON]):
        try:
            answer = aws.client("sts", region).get_caller_identity()
        except FAILURES as error:
            first = first or trouble(error)
            continue
        return _checked(Identity(answer["Account"], answer["Arn"]), pinned_account)
    assert first is not None
    message = f"{first.text}; {first.fix}" if first.fix else first.text
    raise CredentialsError(message) if first.kind == "credentials" else NothingToDoError(message)


def _checked(who: Identity, pinned_account: str | None) -> Identity:
    if pinned_account not in (None, who.account):
        raise CredentialsError(f"account: the settings say {pinned_account}, the credentials are of {who.account} "
                               f"({who.arn}); sign in to {pinned_account}, or change the setting")
    return who


def switched_off(aws: Aws, asked: Sequence[str]) -> dict[str, list[Finding]]:
    """What keeps the account out of a region, for each of the `asked` that is not enabled.

    Where the list of regions may not be read, none is taken for switched off: its own checks will tell.
    """
    try:
        answer = aws.client("ec2", _ALWAYS_ON).describe_regions(AllRegions=True)
    except FAILURES:
        return {}
    states = {r["RegionName"]: r.get("OptInStatus", "") for r in answer["Regions"]}
    return {region: [_off(region)] for region in asked if states.get(region) == "not-opted-in"}


def _off(region: str) -> Finding:
    return Finding("region", "failed", f"{region} is not enabled for this account",
                   f"aws account enable-region --region-name {region}   (takes minutes to hours)")
