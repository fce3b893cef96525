"""What the ranks of the checkpoint tests do: the job's loop over storage that fails, fills up, or is S3."""

import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from loop_cases import work

from training import checkpoint_save, train


def work_over_failing_storage(job, fails_before, mended):
    """`work`; from before this step on no checkpoint can be written, until `mended`.

    `mended`: `soon`, a second later; a step, before which it is; or None, never.
    """
    blocked = Path(job["placement"]["storage"], job["name"], "checkpoints")

    def before(step):
        if dist.get_rank() != 0:
            return
        if step in (fails_before, mended):
            for thread in threading.enumerate():
                if thread.name.startswith("eagleray-checkpoint"):
                    thread.join()
        if step == fails_before:
            if blocked.exists():
                blocked.rename(blocked.with_name("earlier"))
            blocked.write_text("a file where a folder should be")
            if mended == "soon":
                threading.Timer(1, _mend, [blocked]).start()
        if step == mended:
            _mend(blocked)

    _before_each_step(before)
    return work(job)


def work_on_a_disk_that_hides_how_full_it_is(job):
    """`work`, where the look at the free space always sees plenty, as when others fill the disk meanwhile."""
    checkpoint_save.shutil.disk_usage = lambda path: SimpleNamespace(free=1 << 40)
    return work(job)


@contextmanager
def small_disk(path, kib):
    """A file system of that many KiB at the folder `path`, which it makes; skips the test where that needs root."""
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("only root can mount a small file system")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def work_on_s3(job, environment):
    """`work` with AWS's variables."""
    os.environ.update(environment)
    return work(job)


def _mend(blocked):
    earlier = blocked.with_name("earlier")
    blocked.unlink()
    if earlier.exists():
        shutil.move(earlier, blocked)


def _before_each_step(action):
    true_step, steps = train.step.train_step, iter(range(1, 1000))

    def step(*arguments, **named):
        action(next(steps))
        return true_step(*arguments, **named)

    train.step.train_step = step
