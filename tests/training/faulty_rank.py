"""Put over the step of a job that runs on its own copy: rank 1 dies before the step that `dies.json` names."""

import json
import os
from pathlib import Path

from training.step import train_step as true_step

FAULT = json.loads(Path(__file__).with_name("dies.json").read_text())


def train_step(*arguments, **named):
    """The real step, unless this is the one."""
    here = os.environ["RANK"] == "1" and abs(named["learning_rate"] - FAULT["learning_rate"]) < 1e-12
    mark = Path(FAULT["mark"])
    if here and (FAULT["always"] or not mark.exists()):
        mark.touch()
        os._exit(9)
    return true_step(*arguments, **named)
