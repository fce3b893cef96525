"""Who meets whom when a slow pair is looked for, and whom that blames."""

import itertools

import pytest

from training.fabric_pairs import Pair, rounds, slow_node, slowest_text


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 4), (2, 1), (2, 4), (5, 2)])
def test_all_ranks_meet_and_nobody_is_in_two_places(nodes, per_node):
    met = list(rounds(nodes, per_node))
    for meeting in met:
        busy = [rank for pair in meeting for rank in pair]
        assert len(busy) == len(set(busy))
        between = [pair for pair in meeting if pair[0] // per_node != pair[1] // per_node]
        on_the_link = [rank // per_node for pair in between for rank in pair]
        assert len(on_the_link) == len(set(on_the_link))
    pairs = [pair for meeting in met for pair in meeting]
    assert len(pairs) == len(set(pairs))
    everyone = list(itertools.combinations(range(nodes * per_node), 2))
    inside = {(a, b) for a, b in everyone if a // per_node == b // per_node}
    same_place = {(a, b) for a, b in everyone if a // per_node != b // per_node and a % per_node == b % per_node}
    assert set(pairs) == inside | same_place


def test_a_node_that_is_slow_with_all_is_named():
    nodes = ["a", "b", "c", "d"]
    pairs = [Pair((a, b), 0.5 if 2 in (a, b) else 4.0, True, True)
             for a, b in itertools.combinations(range(4), 2)]
    assert slow_node(pairs, nodes) == "c"
    assert slowest_text(pairs, nodes).endswith("node c is slow with all others: replace it")


def test_of_two_nodes_and_of_equal_nodes_none_is_blamed():
    assert slow_node([Pair((0, 1), 0.1, True, True)], ["a", "b"]) is None
    assert slow_node([Pair((a, b), 4.0, True, True) for a, b in itertools.combinations(range(4), 2)],
                     ["a", "b", "c", "d"]) is None


def test_a_pair_that_damages_bytes_comes_first():
    pairs = [Pair((0, 1), 5.0, False, False), Pair((0, 2), 4.0, True, True)]
    assert slowest_text(pairs, ["a", "a", "b"]).startswith(
        "ranks 0 and 1 (both on a) damage what they send each other; slowest pair between nodes: ranks 0 (a) and ")
