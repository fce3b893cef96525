"""Two runs on one page, and both kinds of page in a real browser where there is one."""

import html
import json
import re
import shutil
import subprocess

import pytest

from ops.errors import NothingToDoError
from ops.report import write_report
from ops.report_pair import write_pair
from tests.ops.test_run_report import NASTY, ROWS, SUMMARY, make_run, parsed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# What the page measures of itself in a frame of each width: sideways overflow, and the curves that have a length.
HARNESS = """<!doctype html><body>{frames}<pre id="found"></pre><script>
const found = {{}}, frames = [...document.querySelectorAll("iframe")];
let left = frames.length;
for (const frame of frames) {{
  const measure = () => {{
    const page = frame.contentDocument.documentElement;
    found[frame.width] = {{
      overflow: page.scrollWidth - page.clientWidth,
      curves: [...frame.contentDocument.querySelectorAll("figure svg")].map(svg =>
        [...svg.querySelectorAll("path")].filter(path =>
          path.style.strokeWidth.startsWith("1.8") && path.getTotalLength() > 100).length),
      loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
    }};
    if (--left === 0) document.getElementById("found").textContent = JSON.stringify(found);
  }};
  frame.addEventListener("load", measure);
  frame.srcdoc = {page};
}}
</script></body>"""


def other_run(folder, **training):
    make_run(folder, rows=[{**row, "loss": row["loss"] + 1} for row in ROWS], summary={**SUMMARY, "name": "second"})
    (folder / "run.json").write_text(json.dumps({"training": {"steps": 30, **training}}))
    return folder


@pytest.fixture
def two(tmp_path):
    first = make_run(tmp_path / "first", summary={**SUMMARY, "name": "first"})
    (first / "run.json").write_text(json.dumps({"training": {"steps": 30, "optimizer": {"learning_rate": 1e-3}}}))
    return first, other_run(tmp_path / "second", optimizer={"learning_rate": 3e-3}, seed=7)


def pair(first, second):
    target = first / "comparison.html"
    write_pair(first, second, target)
    return target.read_text()


def test_figures_stand_side_by_side_and_only_what_differs_is_listed(two):
    text = pair(*two)
    parsed(text)
    settings = text[text.index("Settings that differ"):]
    assert "optimizer.<wbr>learning_<wbr>rate" in settings
    assert "seed" in settings
    assert "steps" not in settings
    assert re.search(r"Last loss</th><td>5\.(<wbr>)?000</td><td>5\.(<wbr>)?000</td>", text)
    assert "first 5 at step 30; second 6 at step 30" in text


def test_wires_stand_side_by_side_by_rank_and_each_runs_faults_are_listed(tmp_path):
    over_efa = {"verdict": "efa", "ranks": [{"rank": rank, "provider": "efa", "channels": {"NET/Libfabric": 16}}
                                            for rank in (0, 1)]}
    over_tcp = {"verdict": "tcp", "ranks": [{"rank": 0, "network": "Socket", "errors": ["no_eligible_provider"]}]}
    hung = {**SUMMARY, "transport": over_tcp, "hangs": ["rank 3 stood still"]}
    text = pair(make_run(tmp_path / "one", summary={**SUMMARY, "transport": over_efa}),
                make_run(tmp_path / "two", summary=hung))
    parsed(text)
    plain = text.replace("<wbr>", "")
    assert ('>0</th><td>provider efa, NET/Libfabric 16</td><td>network Socket, error no_eligible_provider</td>'
            in plain)
    assert ">1</th><td>provider efa, NET/Libfabric 16</td><td>no such rank</td>" in plain
    one, two = text[text.index("Faults and restarts"):].split("<h3>")[1:]
    assert "stood still" not in one
    assert "hang: rank 3 stood still" in two


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    text = pair(make_run(tmp_path / "one"), make_run(tmp_path / "two"))
    assert "Not both runs say what they were made of" in text
    assert "one" in re.findall("<title>(.*?)</title>", text)[0]


def test_what_the_runs_say_is_escaped(tmp_path, two):
    nasty = make_run(tmp_path / "nasty", summary={**SUMMARY, "name": NASTY, "status": NASTY})
    (nasty / "run.json").write_text(json.dumps({"training": {NASTY: NASTY}}))
    text = pair(two[0], nasty)
    assert "<script" not in text
    parsed(text)


def test_a_damaged_second_run_is_named(two):
    (two[1] / "metrics.jsonl").write_text("{")
    with pytest.raises(NothingToDoError, match=r"second/metrics\.jsonl line 1"):
        pair(*two)


def in_a_browser(page, folder):
    """What a page measures of itself at 400 and 1400 pixels; fails if the console says anything."""
    frames = "".join(f'<iframe width="{width}" height="900"></iframe>' for width in (400, 1400))
    text = HARNESS.format(frames=frames, page=json.dumps(page).replace("</", "<\\/"))
    (folder / "harness.html").write_text(text)
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         "--window-size=1600,1000", f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000",
         "--dump-dom",
         (folder / "harness.html").as_uri()], capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr
    return json.loads(html.unescape(re.findall(r'<pre id="found">(.*?)</pre>', done.stdout)[0]))


@pytest.mark.long
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here: the pages are not looked at in a browser")
def test_both_pages_draw_their_curves_and_overflow_at_no_width(two, tmp_path):
    write_report(two[0], tmp_path / "one.html")
    for page, lines in ((pair(*two), 2), ((tmp_path / "one.html").read_text(), 1)):
        for width, found in in_a_browser(page, tmp_path).items():
            assert found["overflow"] <= 0, f"at {width} pixels"
            assert found["curves"][0] == lines  # the loss
            assert found["loaded"] == 0
