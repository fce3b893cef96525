"""Whether an image is in its registry: asked as a node asks, by manifest, without pulling a byte of it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator

from k8s.releases import efa_plugin_image
from ops.aws import Aws
from ops.preflight.finding import Finding, Region

_SECONDS = 10
_MANIFESTS = ("application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, "
              "application/vnd.docker.distribution.manifest.list.v2+json, "
              "application/vnd.docker.distribution.manifest.v2+json")
_HOSTS = {"docker.io": "registry-1.docker.io"}
_ECR = re.compile(r"(\d{12})\.dkr\.ecr\.([\w-]+)\.amazonaws\.com")


def training_image(aws: Aws, image: str) -> Iterator[Finding]:
    """The image of the Ray pods."""
    host, repository, tag = parts(image)
    if ecr := _ECR.fullmatch(host):
        yield _in_ecr(aws, ecr[1], ecr[2], repository, tag, image)
        return
    try:
        status = manifest_status(f"https://{_HOSTS.get(host, host)}", repository, tag)
    except (OSError, ValueError) as error:
        yield Finding("image", "unknown", f"{host} does not answer here ({error}); the nodes ask it from their VPC")
        return
    if status == 200:
        yield Finding("image", "ok", image)
    elif status in (401, 403):
        yield Finding("image", "failed", f"{image}: {host} wants credentials for it, and the nodes have none",
                      "copy it to ECR, or use -c set=ray.image=…")
    elif status == 404:
        yield Finding("image", "failed", f"{image} does not exist", "correct ray.image in the settings")
    else:
        yield Finding("image", "unknown", f"{image}: {host} answers {status}", "try again")


def efa_plugin(region: Region) -> Iterator[Finding]:
    """The EFA device plugin's image in the region's own EKS registry."""
    try:
        image = efa_plugin_image(region.name)
    except ValueError as error:
        yield Finding("image", "failed", str(error), "use another region: --regions us-east-2")
        return
    host, repository, tag = parts(image)
    account, where = host.split(".")[0], region.name
    yield _in_ecr(region.aws, account, where, repository, tag, image)


def _in_ecr(aws: Aws, account: str, region: str, repository: str, tag: str, image: str) -> Finding:
    wanted = {"imageDigest": tag} if tag.startswith("sha256:") else {"imageTag": tag}
    ecr = aws.client("ecr", region)
    try:
        answer = ecr.batch_get_image(registryId=account, repositoryName=repository, imageIds=[wanted])
    except ecr.exceptions.RepositoryNotFoundException:
        return Finding("image", "failed", f"{image}: registry {account} has no {repository}",
                       "correct the image's name")
    if answer.get("images"):
        return Finding("image", "ok", image)
    reason = answer["failures"][0].get("failureReason", "not found")
    return Finding("image", "failed", f"{image}: {reason}", "correct the image's tag")


def parts(image: str) -> tuple[str, str, str]:
    """Host, repository, and tag or digest: `rayproject/ray` is docker.io's `rayproject/ray:latest`."""
    name, at, digest = image.partition("@")
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name if slash else f"library/{name}"
    repository, _, tag = rest.partition(":")
    return host, repository, digest if at else tag or "latest"


def manifest_status(base: str, repository: str, tag: str) -> int:
    """HTTP status of an anonymous request for the manifest, with a token where the registry wants one.

    Raises:
        OSError, ValueError: if the registry cannot be reached or does not speak the distribution protocol.
    """
    url = f"{base}/v2/{repository}/manifests/{tag}"
    status, challenge = _head(url, None)
    if status == 401 and challenge.lower().startswith("bearer"):
        status, _ = _head(url, _token(challenge, repository))
    return status


def _head(url: str, token: str | None) -> tuple[int, str]:
    headers = {"Accept": _MANIFESTS, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, method="HEAD", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.headers.get("WWW-Authenticate", "")


def _token(challenge: str, repository: str) -> str | None:
    """An anonymous token, from where `Bearer realm="https://…",service="…"` says."""
    told = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = {"scope": told.get("scope", f"repository:{repository}:pull")}
    if "service" in told:
        query["service"] = told["service"]
    url = f"{told.get('realm', '')}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError:
        return None
    return said.get("token") or said.get("access_token")
