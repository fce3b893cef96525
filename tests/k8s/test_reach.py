"""The evaluator of NetworkPolicies against what Kubernetes' documentation says of them."""

import pytest

from k8s.rules.reach import End, may_reach, selects

A, B = End("10.0.0.1", "one", {"app": "a"}), End("10.0.0.2", "one", {"app": "b"}, {"web": 80})
FAR, OUTSIDE = End("10.0.0.3", "two", {"app": "a"}), End("198.51.100.7")


def policy(selector=None, namespace="one", **spec):
    return {"kind": "NetworkPolicy", "metadata": {"name": "p", "namespace": namespace},
            "spec": {"podSelector": selector or {}, **spec}}


def into_b(**rule):
    return [policy({"matchLabels": {"app": "b"}}, ingress=[rule])]


def test_without_a_policy_everything_is_open():
    assert may_reach([], A, B, 80)
    assert may_reach([], OUTSIDE, B, 80)


def test_a_policy_without_types_closes_what_comes_in_and_only_with_rules_what_goes_out():
    assert not may_reach([policy()], A, B, 80)
    assert may_reach([policy()], B, OUTSIDE, 80)
    assert not may_reach([policy(egress=[{"ports": [{"port": 53}]}])], B, OUTSIDE, 80)


def test_a_policy_of_another_namespace_selects_nothing_here():
    assert may_reach([policy(namespace="two")], A, B, 80)


@pytest.mark.parametrize(("rule", "source", "open_"), [
    ({}, OUTSIDE, True),
    ({"from": []}, OUTSIDE, True),
    ({"from": [{"podSelector": {}}]}, A, True),
    ({"from": [{"podSelector": {}}]}, FAR, False),
    ({"from": [{"namespaceSelector": {}}]}, FAR, True),
    ({"from": [{"namespaceSelector": {}}]}, OUTSIDE, False),
    ({"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}}]}, FAR, True),
    ({"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}},
                "podSelector": {"matchLabels": {"app": "b"}}}]}, FAR, False),
    # Two entries are two ways; one entry with both is one.
    ({"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "two"}}},
               {"podSelector": {"matchLabels": {"app": "b"}}}]}, FAR, True),
    ({"from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}, OUTSIDE, True),
    ({"from": [{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.0/28"]}}]}, OUTSIDE, False),
    ({"from": [{"ipBlock": {"cidr": "::/0"}}]}, OUTSIDE, False),
    ({"from": [{"ipBlock": {"cidr": "nonsense"}}]}, OUTSIDE, False),
])
def test_peers(rule, source, open_):
    assert may_reach(into_b(**rule), source, B, 80) is open_


@pytest.mark.parametrize(("ports", "port", "protocol", "open_"), [
    ([], 80, "TCP", True),
    ([{"port": 80}], 80, "TCP", True),
    ([{"port": 80}], 81, "TCP", False),
    ([{"port": 80}], 80, "UDP", False),
    ([{"port": 80, "endPort": 90}], 85, "TCP", True),
    ([{"port": 80, "endPort": 90}], 91, "TCP", False),
    ([{"port": "web"}], 80, "TCP", True),
    ([{"port": "other"}], 80, "TCP", False),
    ([{"protocol": "UDP"}], 80, "UDP", True),
])
def test_ports(ports, port, protocol, open_):
    assert may_reach(into_b(ports=ports), A, B, port, protocol) is open_


def test_both_ends_have_a_say_and_policies_add_up():
    closed_out = policy({"matchLabels": {"app": "a"}}, policyTypes=["Egress"])
    open_out = policy({"matchLabels": {"app": "a"}}, egress=[{"to": [{"podSelector": {}}]}], policyTypes=["Egress"])
    assert not may_reach([closed_out], A, B, 80)
    assert may_reach([closed_out, open_out], A, B, 80)
    assert not may_reach([closed_out, open_out, policy(policyTypes=["Ingress"])], A, B, 80)


@pytest.mark.parametrize(("expression", "taken"), [
    ({"key": "app", "operator": "In", "values": ["a", "b"]}, True),
    ({"key": "app", "operator": "NotIn", "values": ["a"]}, False),
    ({"key": "app", "operator": "Exists"}, True),
    ({"key": "app", "operator": "DoesNotExist"}, False),
])
def test_selectors(expression, taken):
    assert selects({"matchExpressions": [expression]}, {"app": "a"}) is taken
    assert selects({}, {})
