"""Each rule finds what it is for, in small manifests; and nothing in good ones."""

import pytest
from rule_bases import config_map, deployment, ray_cluster, ray_job, ray_service, service, with_code
from rule_cases import KUBERAY, OTHERS

from k8s.rules import Manifest, check
from k8s.rules.nodes import around_files

CASES = {**KUBERAY, **OTHERS}


def found(*objects):
    return check([Manifest(body) for body in objects], around_files())


@pytest.mark.parametrize("case", CASES)
def test_a_broken_manifest_is_named_by_its_rule(case):
    rule, objects = CASES[case]
    findings = found(*objects)
    assert rule in {finding.rule for finding in findings}
    for finding in findings:
        assert finding.field
        assert finding.problem
        assert finding.mend
        assert "\n" not in str(finding)


def test_every_rule_that_kuberay_has_is_covered():
    # 7 and 39 need a feature gate that is on by default.
    assert {int(case.split()[0]) for case in KUBERAY} == set(range(1, 48)) - {7}


@pytest.mark.parametrize("objects", [
    [ray_job()], [ray_cluster()], [ray_service()], [deployment()], [service("ClusterIP")], [service(port=8000)],
    [with_code(ray_job()), config_map()], [with_code(ray_job())],
], ids=["job", "cluster", "service", "deployment", "inside", "serve", "code", "code-elsewhere"])
def test_the_bases_of_the_cases_are_good(objects):
    assert found(*objects) == []


def test_a_finding_says_what_is_wrong_and_what_would_work():
    (finding,) = found(ray_job(submissionMode="K8sJob"))
    assert str(finding).startswith("submission-mode  RayJob/job  spec.submissionMode: 'K8sJob' is no mode")
    assert "K8sJobMode" in finding.mend
