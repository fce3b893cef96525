"""What the documents say is what the code does."""

import re
from pathlib import Path

import pytest

from k8s.rules import RULES
from k8s.rules import reference as rules
from settings import load_settings, reference

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")),
             *sorted((ROOT / "benchmarks").glob("*.md"))]


def test_the_readme_lists_every_setting_as_it_is():
    text = (ROOT / "README.md").read_text()
    table = re.search(r"<!-- settings:.*?-->\n(.*?)\n<!-- /settings -->", text, re.DOTALL)
    assert table, "README.md has lost the markers around the table of settings"
    assert table.group(1).strip() == reference.markdown(), "run `python -m settings.reference README.md`"


def test_the_rules_for_manifests_are_listed_as_they_are():
    text = (ROOT / "docs" / "check.md").read_text()
    table = re.search(r"<!-- rules:.*?-->\n(.*?)\n<!-- /rules -->", text, re.DOTALL)
    assert table, "docs/check.md has lost the markers around the table of rules"
    assert table.group(1).strip() == rules.markdown(), "run `python -m k8s.rules.reference docs/check.md`"
    assert "synth, check |  |" not in table.group(1), "a rule without a test"


def test_the_rules_for_templates_are_listed_as_they_are():
    from eagleray.policy import reference as template_rules  # with the CDK, which starts a Node process

    text = (ROOT / "docs" / "security.md").read_text()
    table = re.search(r"<!-- template rules:.*?-->\n(.*?)\n<!-- /template rules -->", text, re.DOTALL)
    assert table, "docs/security.md has lost the markers around the table of rules for templates"
    made = "run `python -m eagleray.policy.reference docs/security.md`"
    assert table.group(1).strip() == template_rules.markdown(), made


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_link_to_a_file_leads_somewhere(document):
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_override_in_the_documents_is_accepted(document):
    for config, overrides in re.findall(r"-c config=(\w+)(?![\w/.])(?: -c set=([\w.=,]+))?", document.read_text()):
        load_settings(config, overrides or None)
    for quoted, bare in re.findall(r"-c set=(?:\"(.+?)\"|([\w.=,]+))", document.read_text()):
        load_settings("l4", quoted or bare)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_every_make_target_in_the_documents_exists(document):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z][\w-]+)`?", _code(document))) <= targets


def _code(document: Path) -> str:
    text = document.read_text()
    return "\n".join(re.findall(r"```\w*\n(.*?)```", text, re.DOTALL) + re.findall(r"`([^`\n]+)`", text))


@pytest.mark.parametrize("document", ["check.md", "security.md"])
def test_every_test_that_a_table_of_rules_names_exists(document):
    tables = re.findall(r"rules: .*?-->\n(.*?)<!--", (ROOT / "docs" / document).read_text(), re.DOTALL)
    named = {name for table in tables for name in re.findall(r"`(\w+\.py)`", table)}
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("*.py")}


def test_every_test_and_rule_that_the_security_table_names_exists():
    table = (ROOT / "docs" / "security.md").read_text().split("## What is caught where")[1]
    lines = re.findall(r"^\|(.*)\|$", table, re.MULTILINE)[2:]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    for rule, caught, tests in rows:
        assert caught, f"{rule}: caught where?"
        files = re.findall(r"`(tests/[\w/.]+)`", tests)
        assert files, f"{rule}: no test"
        assert not [name for name in files if not (ROOT / name).is_file()], rule
    caught = re.findall(r"\| [^|]*?\(((?:`[\w.-]+`(?:, )?)+)\) \| `tests", table)
    named = [name for group in caught for name in re.findall(r"`([\w.-]+)`", group)]
    known = {*RULES, *re.findall(r"^\| `([\w.]+)`", (ROOT / "README.md").read_text(), re.MULTILINE), "digests"}
    assert len(named) > 8
    assert set(named) <= known
