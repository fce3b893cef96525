"""What can go wrong in a command, and the exit code a script sees."""

from __future__ import annotations


class CommandError(Exception):
    """Ends a command. The message is for the person who typed it; `exit_code` for the script around it."""

    exit_code = 1


class NothingToDoError(CommandError):
    """The input is missing, unreadable or ambiguous: nothing was started."""

    exit_code = 2


class StoppedError(CommandError):
    """A signal stopped the command; 128 + the signal's number, as shells do."""

    def __init__(self, signal_number: int, message: str = "stopped; nothing is left running") -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
