"""What a rule is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k8s.rules.world import World


@dataclass(frozen=True)
class Manifest:
    """One Kubernetes object, and the file that it was read from (`` where it came from none)."""

    body: dict[str, Any]
    file: str = ""

    @property
    def kind(self) -> str:
        return str(self.body.get("kind", ""))

    @property
    def metadata(self) -> dict[str, Any]:
        found = self.body.get("metadata")
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or self.metadata.get("generateName") or "")

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "default")

    @property
    def group(self) -> str:
        """`apps` of `apps/v1`, and nothing of `v1`."""
        version = str(self.body.get("apiVersion", ""))
        return version.rpartition("/")[0]

    def __str__(self) -> str:
        place = f"{self.metadata['namespace']}/" if self.metadata.get("namespace") else ""
        return f"{self.kind or 'object'}/{place}{self.name or '?'}"

    def fault(self, field: str, problem: str, mend: str) -> Fault:
        return Fault(self, field, problem, mend)


@dataclass(frozen=True)
class Fault:
    """Something wrong in one field, before it is known which rule says so."""

    manifest: Manifest
    field: str
    problem: str
    mend: str


@dataclass(frozen=True)
class Finding:
    """Something wrong: which rule, where, what, and what would work."""

    rule: str
    file: str
    object: str
    field: str
    problem: str
    mend: str

    def __str__(self) -> str:
        return f"{self.rule}  {self.object}  {self.field}: {self.problem}; {self.mend}"


@dataclass(frozen=True)
class Rule:
    """A rule with its reason.

    `unseen` is what happens to whoever applies the manifest without this check, `source` where that is
    known from.
    """

    id: str
    reason: str
    unseen: str
    source: str
    faults: Callable[[World], Iterable[Fault]]


RULES: dict[str, Rule] = {}
"""Every rule by its id, in the order of the files."""

# Who notices without us. VALIDATION_FAILED is terminal: only a new RayJob helps.
API_SERVER = "the API server refuses it"
VALIDATION_FAILED = "the operator: ValidationFailed, for good"
EVENT = "an event of the operator; nothing starts"
POD_EVENT = "an event; no pod is made, the job stays Initializing"
PENDING = "the pod stays Pending"
NOBODY = "nobody"

KUBERAY = "KubeRay 1.7.0, ray-operator/controllers/ray/utils/validation.go"
KUBERAY_CRD = "KubeRay 1.7.0, the CRD's own rules"
KUBERAY_RUN = "seen with KubeRay 1.7.0 on Kubernetes 1.36"
KUBERNETES = "Kubernetes API reference"


def rule(
    id: str, *, reason: str, unseen: str, source: str
) -> Callable[[Callable[[World], Iterable[Fault]]], Callable[[World], Iterable[Fault]]]:
    """Make a function from manifests to faults a rule."""

    def register(faults: Callable[[World], Iterable[Fault]]) -> Callable[[World], Iterable[Fault]]:
        assert id not in RULES, id
        RULES[id] = Rule(id, reason, unseen, source, faults)
        return faults

    return register
