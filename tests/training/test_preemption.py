"""All ranks leave after the same step, whenever each of them hears that a node goes."""

import time

import ranks

from training.preemption import Notice


def steps_until_the_notice(told_after, slow_rank):
    """Steps that this rank does until it leaves, and how often Ray was asked."""
    import torch.distributed as dist

    asked = []

    def ask():
        asked.append(None)
        dist.barrier()  # as Ray's: all ranks must ask as often
        return "node 7 drains" if len(asked) > told_after else None

    notice = Notice(ask, seconds=0.1)
    for step in range(1, 1000):
        if dist.get_rank() == slow_rank:
            time.sleep(0.02)
        if notice.came():
            return step, len(asked)
    return None


def test_all_ranks_leave_after_the_same_step_and_ray_is_asked_seldom():
    first, second = ranks.run(2, steps_until_the_notice, 2, 1)
    assert first == second
    assert first is not None
    step, asked = first
    assert asked == 3
    assert step >= 6  # of 0.02 s each, with 0.1 s between two questions


def test_no_notice_no_end():
    assert ranks.run(2, never, 30) == [30, 30]


def never(steps):
    notice = Notice(lambda: None, seconds=0)
    return sum(not notice.came() for _ in range(steps))


def step_of_leaving(rank_with_room):
    import torch.distributed as dist

    notice = Notice(lambda: None, lambda: dist.get_rank() == rank_with_room, seconds=0)
    for step in range(1, 100):
        if why := notice.came():
            return step, why
    return None


def test_all_ranks_leave_for_more_nodes_after_the_same_step():
    assert ranks.run(2, step_of_leaving, 0) == [(2, "there is room for more nodes")] * 2
