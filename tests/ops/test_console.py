"""Texts of others on the screen: logs, manifests and answers may hold what a terminal would act on."""

import io
import re
import subprocess
import sys

import pytest
import yaml
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from ops.console import Console, printable

# Clear the screen, set the title, ask for the cursor's place, write backwards, a C1 control, a bell.
EVIL = "\x1b[2J\x1b]0;owned\x07\x1b[6n\u202etxt.exe\x9b31m\x08\x00"
# A failure that is quoted with the whole line.
_FAULT = "node-1:77:77 [0] NCCL WARN NET/OFI Request completed with error. RC: 113. Error: "


def shown(show, terminal=True):
    output = io.StringIO()
    show(Console(file=output, force_terminal=terminal, width=200))
    return output.getvalue()


@pytest.mark.parametrize("show", [
    lambda console: console.print(escape(f"a{EVIL}z")),
    lambda console: console.print(f"[bold]{escape(f'a{EVIL}z')}[/]"),
    lambda console: console.print(Padding(escape(f"a{EVIL}z"), (0, 0, 0, 4))),
    lambda console: console.print(_table(f"a{EVIL}z")),
], ids=["line", "styled", "padded", "table"])
def test_a_text_of_others_controls_no_terminal(show):
    text = shown(show)
    # What is left of escape sequences are rich's own colours.
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "owned" in text
    for character in "\x07\x08\x00\x9b\u202e":
        assert character not in text


def _table(text):
    table = Table("what")
    table.add_row(escape(text))
    return table


def test_words_of_every_language_stay_and_so_do_lines_and_colours():
    words = "Größe 步骤 مرحبا → … │\n\tnext"
    assert printable(words) == words
    assert "\x1b[31m" in shown(lambda console: console.print("[red]x[/]"))


def command(*arguments, folder):
    return subprocess.run([sys.executable, "-c", "from ops.cli import main; main()", *arguments],
                          capture_output=True, text=True, cwd=folder, timeout=60)


def test_commands_show_hostile_logs_manifests_and_names_harmlessly(tmp_path):
    (tmp_path / "nccl.log").write_text("node-1:77:77 [0] NCCL INFO NCCL version 2.27.7\n" + _FAULT + EVIL + "\n")
    manifest = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "j"},
                "spec": {"entrypoint": "x", "submissionMode": EVIL, "rayClusterSpec": {}}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(manifest, allow_unicode=False))
    name = EVIL.replace("\x00", "")
    for arguments in (["transport", "nccl.log"], ["check", "job.yaml"], ["check", name], ["report", name]):
        found = command(*arguments, folder=tmp_path)
        assert found.returncode in (1, 2, 4), found
        for character in "\x1b\x07\x08\x9b\u202e":
            assert character not in found.stdout + found.stderr, arguments
        assert "Traceback" not in found.stderr
    assert "RC: 113" in command("transport", "nccl.log", folder=tmp_path).stdout
