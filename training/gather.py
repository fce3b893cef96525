"""What every rank knows, on every rank."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def gathered(mine: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What each rank gave, by rank, on every rank. Call on all ranks of `group`; `mine` is pickled."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    return found
