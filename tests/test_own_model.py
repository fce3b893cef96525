"""docs/training-your-own-model.md: its commands, run as a reader would."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "training-your-own-model.md"


@pytest.mark.long
def test_the_commands_on_this_machine_lead_from_rows_to_a_model(tmp_path):
    here = DOCUMENT.read_text().partition("\n## On AWS\n")[0]
    commands = re.findall(r"```sh\n(.*?)```", here, re.DOTALL)
    assert len(commands) == 7
    (tmp_path / "tmp").mkdir()
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)], cwd=tmp_path, capture_output=True, text=True,
        timeout=600, check=False,
        env={**environment, "REPOSITORY": str(ROOT), "TMPDIR": str(tmp_path / "tmp"), "RAY_TMPDIR": "/tmp",
             "HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert re.search(r"tokens of 3,600 documents, of which [\d,]+ tokens count", ended.stdout)
    assert "step 40: my-model" in ended.stdout
    assert ended.stdout.strip().splitlines()[-1].startswith("12 plus 30 is")
    runs = tmp_path / "runs" / "sums"
    summary = json.loads((runs / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("succeeded", 40)
    assert summary["last_loss"] < summary["first_loss"] - 1
    assert summary["model"] == {"uri": str(runs / "model"), "reason": None}
    at_the_end = AutoModelForCausalLM.from_pretrained(runs / "model", dtype="float32").state_dict()
    on_demand = AutoModelForCausalLM.from_pretrained(tmp_path / "my-model").state_dict()
    assert all(tensor.equal(on_demand[name].bfloat16().float()) for name, tensor in at_the_end.items())
