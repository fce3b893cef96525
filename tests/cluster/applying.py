"""Synthesized manifests put to an API server, by the official client."""

import os
import time
import uuid

import yaml
from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from urllib3.exceptions import HTTPError

MANAGER = "eagleray-tests"
_STRICT = ("fieldValidation", "Strict")


class NoClusterError(Exception):
    """KUBECONFIG names no cluster that answers."""


class UnknownKindError(Exception):
    """The cluster does not know a kind: its CRD is missing."""


def connect():
    """The cluster that KUBECONFIG names."""
    try:
        api = config.new_client_from_config(config_file=os.environ.get("KUBECONFIG"))
        client.VersionApi(api).get_code(_request_timeout=5)
        return Cluster(dynamic.DynamicClient(api))
    except (ConfigException, ApiException, HTTPError, OSError) as error:
        raise NoClusterError(f"KUBECONFIG names no cluster that answers ({type(error).__name__})") from None


class Cluster:
    """What the suite asks of an API server. Refusals are the client's own errors, with the server's words."""

    def __init__(self, dynamic_client):
        self._client = dynamic_client

    def dry_run(self, manifest):
        """The server's judgement of an object, strict about fields; nothing is stored. Into namespace `default`."""
        return self._patch(moved(manifest, "default"), [_STRICT, ("dryRun", "All")])

    def apply(self, manifest):
        """Store an object, whoever owns its fields."""
        return self._patch(manifest, [_STRICT, ("force", "true")])

    def has(self, api_version, kind, name, namespace=None):
        """Whether there is such an object."""
        try:
            self._kind(api_version, kind).get(name=name, namespace=namespace)
        except ApiException as error:
            if error.status == 404:
                return False
            raise
        return True

    def wait_until_served(self, crd, seconds=30):
        """Wait until the API server serves the kind of a new CRD."""
        end = time.monotonic() + seconds
        while True:
            found = self._kind(crd["apiVersion"], crd["kind"]).get(name=crd["metadata"]["name"]).to_dict()
            conditions = found.get("status", {}).get("conditions") or []
            if any((one["type"], one["status"]) == ("Established", "True") for one in conditions):
                return
            assert time.monotonic() < end, f"{crd['metadata']['name']} is not served after {seconds} s"
            time.sleep(0.2)

    def delete(self, manifest, seconds=60):
        """Delete an object, and wait until it is gone: finalizers have until then."""
        kind, found = (manifest["apiVersion"], manifest["kind"]), manifest["metadata"]
        try:
            self._kind(*kind).delete(name=found["name"], namespace=found.get("namespace"))
        except ApiException as error:
            if error.status != 404:
                raise
        end = time.monotonic() + seconds
        while self.has(*kind, found["name"], found.get("namespace")):
            assert time.monotonic() < end, f"{kind[1]} {found['name']} is still there after {seconds} s"
            time.sleep(0.5)

    def _patch(self, manifest, query):
        found = manifest["metadata"]
        return self._kind(manifest["apiVersion"], manifest["kind"]).patch(
            body=manifest, name=found["name"], namespace=found.get("namespace"),
            content_type="application/apply-patch+yaml", query_params=[*query, ("fieldManager", MANAGER)])

    def _kind(self, api_version, kind):
        try:
            return self._client.resources.get(api_version=api_version, kind=kind)
        except ResourceNotFoundError:
            raise UnknownKindError(f"the cluster knows no {kind} ({api_version})") from None


def moved(manifest, namespace):
    """The object as it would be in another namespace; one of the whole cluster as it is."""
    if "namespace" not in manifest["metadata"]:
        return manifest
    there = {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}
    if "subjects" in manifest:  # of a RoleBinding
        there["subjects"] = [{**one, "namespace": namespace} for one in manifest["subjects"]]
    return there


def apply_and_remove(cluster, manifests, crds):
    """Apply what lies in namespaces into one that is made for it, the CRDs of a folder first; remove all again.

    CRDs that the cluster has already are neither changed nor removed. Returns the names of what was applied.
    """
    made, applied = [], []
    namespace = f"eagleray-test-{uuid.uuid4().hex[:8]}"
    try:
        for file in sorted(crds.glob("*.yaml")):
            crd = yaml.safe_load(file.read_text())
            if not cluster.has(crd["apiVersion"], crd["kind"], crd["metadata"]["name"]):
                made.append(crd)
                cluster.apply(crd)
                cluster.wait_until_served(crd)
        made.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        cluster.apply(made[-1])
        for manifest in manifests:
            if "namespace" in manifest["metadata"]:
                made.append(moved(manifest, namespace))
                cluster.apply(made[-1])
                applied.append(f"{manifest['kind']}/{manifest['metadata']['name']}")
    finally:
        for one in reversed(made):
            cluster.delete(one)
    return applied
