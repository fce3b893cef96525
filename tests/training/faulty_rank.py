"""Over the step of a job on its own copy: rank 1 dies, or raises, before each step of `dies.json` once."""

import json
import os
from pathlib import Path

from training.step import train_step as true_step

FAULT = json.loads(Path(__file__).with_name("dies.json").read_text())


def train_step(*arguments, **named):
    """The real step, unless this is the next one to die at."""
    deaths = Path(FAULT["deaths"])
    left = FAULT["learning_rates"][len(deaths.read_text()) if deaths.exists() else 0:]
    if os.environ["RANK"] == "1" and left and abs(named["learning_rate"] - left[0]) < 1e-12:
        with open(deaths, "a") as stream:
            stream.write("x")
        if FAULT["raises"]:
            raise ArithmeticError("the rank's own mistake")
        os._exit(9)
    return true_step(*arguments, **named)
