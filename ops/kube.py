"""The Kubernetes cluster that KUBECONFIG names, as commands of `eagleray` need it: objects in, objects out."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException

from ops.errors import CommandError, NothingToDoError

_RAY = {"group": "ray.io", "version": "v1"}
_PLURALS = {"RayJob": "rayjobs", "RayCluster": "rayclusters"}
_SECONDS = (5, 30)  # to connect, and to wait for an answer


class KubeError(CommandError):
    """The cluster refused; the message says what it was asked and what helps."""


class UnreachableError(KubeError):
    """The cluster did not answer, or not sensibly: the next attempt may succeed."""


@dataclass(frozen=True)
class Namespace:
    """One namespace of a cluster. Every method raises KubeError, or UnreachableError where it is worth another try.

    `context` is the kubeconfig's name for cluster and user; `api` talks to it.
    """

    name: str
    context: str
    api: client.ApiClient

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """A RayJob or RayCluster as the API server has it; None if there is none of that name."""
        return self._asked(f"{kind} {name}", lambda: self._custom.get_namespaced_custom_object(
            **_RAY, namespace=self.name, plural=_PLURALS[kind], name=name, _request_timeout=_SECONDS))

    def list(self, kind: str) -> list[dict[str, Any]]:
        """All RayJobs or RayClusters.

        Raises:
            NothingToDoError: if the cluster does not know the kind.
        """
        found = self._asked(f"{kind}s", lambda: self._custom.list_namespaced_custom_object(
            **_RAY, namespace=self.name, plural=_PLURALS[kind], _request_timeout=_SECONDS))
        if found is None:
            raise NothingToDoError(f"the cluster of context {self.context} knows no {kind}: KubeRay is not "
                                   "installed there. Is it the right context? (kubectl config current-context); "
                                   "else cdk deploy --all")
        return found["items"]

    def config_maps(self) -> list[dict[str, Any]]:
        """All ConfigMaps, as the API server writes them."""
        found = self._asked("ConfigMaps", lambda: self._core.list_namespaced_config_map(
            self.name, _request_timeout=_SECONDS))
        plain: Any = self.api.sanitize_for_serialization(found)
        return plain["items"] if plain else []

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create a RayJob or ConfigMap; one of that name that is there already stays as it is."""
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "ConfigMap":
            self._asked(f"ConfigMap {name}", lambda: self._core.create_namespaced_config_map(
                self.name, dict(manifest), _request_timeout=_SECONDS), conflict_is_well=True)
        else:
            self._asked(f"{kind} {name}", lambda: self._custom.create_namespaced_custom_object(
                **_RAY, namespace=self.name, plural=_PLURALS[kind], body=dict(manifest),
                _request_timeout=_SECONDS), conflict_is_well=True)

    def own_config_map(self, name: str, owner: Mapping[str, Any]) -> None:
        """Add an owner, as the API server has it, to a ConfigMap's others; Kubernetes deletes it after the last."""
        # Without blockOwnerDeletion, for which the user could need `update` on rayjobs/finalizers. The client sends
        # a dict as a strategic merge, which keeps the owners of other uids.
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                     "uid": owner["metadata"]["uid"]}
        self._asked(f"ConfigMap {name}", lambda: self._core.patch_namespaced_config_map(
            name, self.name, {"metadata": {"ownerReferences": [reference]}}, _request_timeout=_SECONDS))

    def delete(self, kind: str, name: str) -> None:
        """Ask for the end of a RayJob or ConfigMap, if it is there; a RayJob's finalizer runs afterwards."""
        if kind == "ConfigMap":
            self._asked(f"ConfigMap {name}", lambda: self._core.delete_namespaced_config_map(
                name, self.name, _request_timeout=_SECONDS))
        else:
            self._asked(f"{kind} {name}", lambda: self._custom.delete_namespaced_custom_object(
                **_RAY, namespace=self.name, plural=_PLURALS[kind], name=name, _request_timeout=_SECONDS))

    def submitter_log(self, ray_job: str, lines: int | None = None) -> str:
        """What the submitter pod of a RayJob has printed, or its last `lines`; empty before it runs."""
        pods = self._asked("pods", lambda: self._core.list_namespaced_pod(
            self.name, label_selector=f"job-name={ray_job}", _request_timeout=_SECONDS))
        if pods is None or not pods.items or pods.items[-1].status.phase == "Pending":
            return ""
        return self.pod_log(pods.items[-1].metadata.name, lines=lines)

    def within(self, namespace: str) -> Namespace:
        """Another namespace of the same cluster."""
        return replace(self, name=namespace)

    def pods(self, labels: str = "") -> list[dict[str, Any]]:
        """Pods with these `labels` (`a=b,c`), or all, as the API server writes them."""
        return _items(self._asked("pods", lambda: self._core.list_namespaced_pod(
            self.name, label_selector=labels, _preload_content=False, _request_timeout=_SECONDS)))

    def nodes(self) -> list[dict[str, Any]]:
        """All nodes of the cluster."""
        return _items(self._asked("nodes", lambda: self._core.list_node(
            _preload_content=False, _request_timeout=_SECONDS)))

    def events(self) -> list[dict[str, Any]]:
        """Events of the namespace, as the API server writes them."""
        return _items(self._asked("events", lambda: self._core.list_namespaced_event(
            self.name, _preload_content=False, _request_timeout=_SECONDS)))

    def pod_log(self, pod: str, container: str | None = None, lines: int | None = None) -> str:
        """What a container has printed, or its last `lines`; empty where pod or log are gone."""
        # As bytes: the client would turn a log that looks like JSON into something else.
        answer = self._asked(f"the log of pod {pod}", lambda: self._core.read_namespaced_pod_log(
            pod, self.name, container=container, tail_lines=lines, _preload_content=False,
            _request_timeout=_SECONDS))
        return answer.data.decode(errors="replace") if answer else ""

    def follow_log(self, pod: str, container: str | None = None, lines: int | None = None) -> Iterator[str]:
        """Lines of a container's log as they come, until it ends; without their line ends."""
        what, (connect_seconds, _) = f"the log of pod {pod}", _SECONDS
        answer = self._asked(what, lambda: self._core.read_namespaced_pod_log(
            pod, self.name, container=container, tail_lines=lines, follow=True, _preload_content=False,
            _request_timeout=(connect_seconds, None)))
        chunks, rest = (answer.stream(decode_content=True) if answer else iter(())), b""
        while (chunk := self._asked(what, lambda: next(chunks, None))) is not None:
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if rest:
            yield rest.decode(errors="replace")

    @property
    def _core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api)

    @property
    def _custom(self) -> client.CustomObjectsApi:
        return client.CustomObjectsApi(self.api)

    def _asked(self, what: str, ask: Callable[[], Any], conflict_is_well: bool = False) -> Any:
        """The API server's answer; None where it says that there is no such thing."""
        try:
            return ask()
        except ApiException as error:
            status = int(error.status or 0)
            if status == 404 or (status == 409 and conflict_is_well):
                return None
            raise self._refusal(what, status, error) from None
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"the cluster of context {self.context} ({self.api.configuration.host}) does not answer: "
                f"{_reason(error)}. Is cluster.api_cidrs open to this machine's address, and the kubeconfig up to "
                "date (aws eks update-kubeconfig)?") from None

    def _refusal(self, what: str, status: int, error: ApiException) -> KubeError:
        place = f"{what} in namespace {self.name} of context {self.context}"
        if status == 401:
            return KubeError(f"{place}: the cluster does not accept these credentials (401); log in again, and see "
                             "that cluster.admin_arns names your role")
        if status == 403:
            return KubeError(f"{place}: your user may not do that (403): {_message(error)}; cluster.admin_arns "
                             "makes a role an administrator")
        refusal = f"{place}: the API server answers {status}: {_message(error)}"
        return UnreachableError(refusal) if status == 429 or status >= 500 else KubeError(refusal)


def connect(namespace: str) -> Namespace:
    """The namespace in the cluster of the kubeconfig's current context.

    Raises:
        NothingToDoError: if there is no usable kubeconfig.
    """
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # it reports each attempt
    files = os.environ.get("KUBECONFIG") or None
    try:
        api = config.new_client_from_config(config_file=files)
        context = config.list_kube_config_contexts(config_file=files)[1]["name"]
    except (ConfigException, OSError, KeyError) as error:
        raise NothingToDoError(f"no usable kubeconfig ({' '.join(str(error).split())}); make one with aws eks "
                               "update-kubeconfig --name eagleray --region us-east-2") from None
    return Namespace(namespace, context, api)


def _items(answer: Any) -> list[dict[str, Any]]:
    """A list out of the API server's own JSON: the client's models refuse what is newer or older than they are."""
    return json.loads(answer.data)["items"] if answer else []


def _message(error: ApiException) -> str:
    """The `message` of the API server's Status, or the first part of what it sent instead."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body or error.reason)[:300]


def _reason(error: Exception) -> str:
    """`Connection refused` out of urllib3's nested texts."""
    inner = getattr(error, "reason", None) or error
    return str(inner).rpartition(": ")[2] or type(inner).__name__
