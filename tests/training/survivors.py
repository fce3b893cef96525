"""The job that the tests of survival train on a Ray cluster of this machine."""

from pathlib import Path

import ranks
from loop_cases import work

from benchmarks.local_job import Storage, Training, cluster_of, kill_node, worker

__all__ = ["Storage", "Training", "cluster_of", "job", "kill_node", "losses_undisturbed", "worker"]


def job(folder, *, steps=40, **training):
    """Two nodes of one rank each; a step takes about a tenth of a second, a checkpoint comes every fifth."""
    training = {"steps": steps, "sequence_length": 64, "micro_batch": 4, "accumulation": 8,
                "checkpoint": {"every_steps": 5, "keep": 3}, "fabric": {"seconds": 0}, **training}
    found = ranks.job(folder, **training)
    found["placement"].update(nodes=2, workers_per_node=1)
    return found


def losses_undisturbed(job):
    """Losses of a job of two ranks when nothing happens: they run here, without a cluster that could fail."""
    job["placement"].update(nodes=1, workers_per_node=2)
    assert ranks.run(2, work, job) == [None, None]
    return ranks.losses(Path(job["placement"]["storage"], job["name"]))
