"""The nodes that an elastic run may have: waited for before it starts, and looked for while it has fewer."""

from __future__ import annotations

import time
from collections.abc import Callable

import ray
from ray.util import placement_group, remove_placement_group

from training.config import Placement
from training.errors import JobError

OTHERS_S = 300.0
"""Seconds that a run with its fewest nodes waits for the others before it starts: nodes that are asked for together
come within minutes of each other, and a start with fewer is done again when they come."""
STEADY_S = 60.0
"""Seconds that a node must be there before a run leaves for it; Ray Train learns of nodes up to 20 s late."""
_LOOK_S = 5.0


def there(place: Placement) -> int:
    """Nodes of this kind that are alive."""
    return sum(int(node["Resources"].get(_ranks_take(place), 0) // place.workers_per_node)
               for node in ray.nodes() if node["Alive"])


def free(place: Placement) -> int:
    """Nodes of this kind that nobody uses."""
    return int(ray.available_resources().get(_ranks_take(place), 0) // place.workers_per_node)


def await_nodes(place: Placement, seconds: float, look: Callable[[Placement], int] = there,
                clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep) -> None:
    """Ask for all nodes, and wait until they are there, or the fewest are and no more come.

    Args:
        seconds: to wait for the fewest; 0: without end.

    Raises:
        JobError: if they did not come.
    """
    if look(place) >= place.nodes:
        return
    # What the autoscaler makes nodes for; it goes with this process, however that ends.
    wish = placement_group([{"CPU": 1, _ranks_take(place): 1}] * place.world_size)
    began, enough_since, said = clock(), None, -1
    try:
        while (found := look(place)) < place.nodes:
            if found != said:
                said = found
                print(f"{found} of {place.nodes} nodes are there, {place.fewest_nodes} are enough", flush=True)
            enough_since = None if found < place.fewest_nodes else enough_since or clock()
            if enough_since is not None and clock() - enough_since >= OTHERS_S:
                return
            if seconds and enough_since is None and clock() - began >= seconds:
                raise JobError(too_few(place, seconds))
            pause(_LOOK_S)
    finally:
        remove_placement_group(wish)


def too_few(place: Placement, seconds: float) -> str:
    """Why a run ends that had not even its fewest nodes for so long."""
    return (f"{place.fewest_nodes} of {place.nodes} nodes (gpu.min_nodes, gpu.nodes) were not there within "
            f"{seconds:g} s")


class Room:
    """Whether a run with fewer nodes than it wants could go on with more. Asked now and then, on rank 0.

    Args:
        place: at full size.
        nodes: that it has.
        look: free nodes.
    """

    def __init__(self, place: Placement, nodes: int, look: Callable[[Placement], int] = free,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._wants_more, self._look, self._clock = place, nodes < place.nodes, look, clock
        self._looked, self._since = clock(), None

    def __call__(self) -> bool:
        now = self._clock()
        if not self._wants_more or now - self._looked < _LOOK_S:
            return False
        self._looked = now
        if not self._look(self._place):
            self._since = None
            return False
        self._since = self._since or now
        return now - self._since >= STEADY_S


def _ranks_take(place: Placement) -> str:
    return "GPU" if place.device == "cuda" else "CPU"
