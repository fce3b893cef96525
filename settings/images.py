"""Names of container images, the digests that pin them, and the Ray inside."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from settings.strict import Strict

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# registry.example:5000/team/ray, as the distribution protocol spells it.
_HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::\d{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def _image(value: str) -> str:
    named, at, digest = value.partition("@")
    if at:
        _digest(digest)
    repository, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:  # that colon was a registry's port
        repository, tag = named, ""
    if len(value) > 500 or not _NAME.fullmatch(repository) or (tag and not _TAG.fullmatch(tag)):
        raise ValueError("is not the name of an image; it looks like public.ecr.aws/team/ray:1.2, or "
                         "public.ecr.aws/team/ray@sha256: and 64 hexadecimal digits")
    if not tag and not at:
        raise ValueError(f"has no tag, and so means whatever was pushed last; use {value}:TAG or {value}@sha256:…")
    return value


def _digest(value: str) -> str:
    if not _DIGEST.fullmatch(value):
        raise ValueError(f"{value or 'nothing'} is no digest; it is sha256: and 64 hexadecimal digits, which "
                         "docker buildx imagetools inspect IMAGE prints")
    return value


def _ray_version(value: str) -> str:
    found = re.fullmatch(r"(\d{1,3})\.(\d{1,3})\.\d{1,3}", value)
    if not found:
        raise ValueError("is not a version of Ray; it looks like 2.58.0")
    if (int(found[1]), int(found[2])) < (2, 52):
        raise ValueError("knows no tokens, so that anybody who reaches it runs code on it; use an image with Ray "
                         "2.52.0 or newer")
    return value


ImageName = Annotated[str, AfterValidator(_image)]
"""`name:tag`, `name@sha256:…` or both; a digest wins over a tag."""
Digest = Annotated[str, AfterValidator(_digest)]
"""`sha256:` and 64 hexadecimal digits."""
RayVersion = Annotated[str, AfterValidator(_ray_version)]
"""A version whose ports can ask for a token."""


class DigestSettings(Strict):
    """Digests for the images that are not `ray.image`: with one, a node runs these very bytes or nothing."""

    kuberay_operator: Digest | None = None
    """Digest of the KubeRay operator's image; none: its tag in k8s/versions.json."""
    nvidia_device_plugin: Digest | None = None
    """Digest of the NVIDIA device plugin's image; none: its tag in k8s/versions.json."""
    efa_device_plugin: Digest | None = None
    """Digest of the EFA device plugin's image; none: its tag in k8s/versions.json."""
