"""One run of `eagleray preflight` against hand-written answers of AWS (fake_aws.py)."""

import io
import re

from fake_aws import FakeAws
from rich.console import Console

from ops.context import Context
from ops.preflight.command import Wanted, run

READS = re.compile(r"[\w.]+\.(Describe|Get|List|BatchGet)\w+")


class Preflight:
    """One run of the command: exit code, what was shown, and what AWS was asked."""

    def __init__(self, answers=None, overrides=None, confirm=lambda _: True, width=100, **wanted):
        self.aws, self.output = FakeAws(answers), io.StringIO()
        self._confirm, self._width = confirm, width
        self._wanted = Wanted(Context(overrides=overrides), **wanted)

    def run(self):
        screen = Console(file=self.output, width=self._width)
        return run(self._wanted, screen, lambda: self.aws, self._confirm)

    @property
    def shown(self):
        return self.output.getvalue()


def answered(code, answers=None, **more):
    """The words of a run that must end with that exit code, on one line each."""
    preflight = Preflight(answers, width=400, **more)
    assert preflight.run() == code, preflight.shown
    return preflight.shown
