"""Evidence that others collected, with the cause that is known: named by DIAGNOSIS_CASES, not kept here."""

import json
import os
from pathlib import Path

import pytest

from ops.diagnose.evidence import Document
from ops.diagnose.judge import diagnose

FILE = os.environ.get("DIAGNOSIS_CASES", "")
CASES = [json.loads(line) for line in Path(FILE).read_text().splitlines()] if FILE else []
pytestmark = pytest.mark.skipif(not FILE, reason="DIAGNOSIS_CASES names no file of evidence with known causes")


def verdict_of(case):
    return {"none": "healthy", "unknown": "unknown"}.get(case["cause"], "fault")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_first_finding_names_the_known_cause_and_fix(case):
    found = diagnose([Document("evidence.txt", case["evidence"]["text"].splitlines())])
    first = f"{found.findings[0].cause} {found.findings[0].fix}".lower()
    said = " ".join(f"{finding.cause} {finding.fix}" for finding in found.findings).lower()
    assert found.verdict == verdict_of(case)
    assert [word for word in case["must_name"] if word not in first] == []
    assert [word for word in case["must_not"] if word in said] == []


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_every_finding_quotes_lines_that_stand_in_the_evidence(case):
    rows = case["evidence"]["text"].splitlines()
    found = diagnose([Document("evidence.txt", rows)])
    for finding in found.findings:
        assert finding.evidence, finding.kind
        for quote in finding.quoted():
            assert quote["text"].rstrip("…")[-40:] in rows[quote["line"] - 1]
