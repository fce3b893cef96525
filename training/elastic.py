"""A run that goes on with fewer nodes, in numbers: a step stays the same step.

All that a step trains on follows from its number and from how many sequences it has. So fewer ranks take more
sequences each, and the weights after the step are the same but for the rounding of sums in another order.
"""

from __future__ import annotations

import math

from training.config import Placement


def sizes(place: Placement) -> range:
    """The numbers of nodes that the run may go on with, the full one last."""
    return range(place.fewest_nodes, place.nodes + 1)


def shares(place: Placement) -> int:
    """What the sequences of a rank at full size must be a multiple of, so that every size gets whole ones.

    From 3 nodes to 2, a rank's 2 sequences become 3; a single one could not be shared out.
    """
    return math.lcm(*(nodes // math.gcd(nodes, place.nodes) for nodes in sizes(place)))


def on(place: Placement, nodes: int) -> Placement:
    """The placement of a start on this many nodes."""
    return place.model_copy(update={"nodes": nodes, "min_nodes": None})


def sizes_said(place: Placement) -> str:
    """`2`, or `1 to 2`."""
    return f"{place.fewest_nodes} to {place.nodes}" if place.is_elastic else f"{place.nodes}"
