"""`python -m training.train` as the pods run it: a copied folder, a real Ray, real workers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
from loop_cases import work
from ray.exceptions import RayActorError
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training.config import TrainJob
from training.step import learning_rate

ROOT = Path(__file__).resolve().parents[2]
STEPS = 12


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Real text, and a small BPE tokenizer made from it."""
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("argparse.py", "difflib.py", "inspect.py"):
        shutil.copy(Path(os.__file__).parent / name, folder / f"{name}.txt")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train(
        [str(f) for f in folder.glob("*.txt")],
        trainers.BpeTrainer(vocab_size=512, special_tokens=["<end>"], show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>").save_pretrained(folder / "tokenizer")
    return folder


def run(folder, job, dies_at, raises=False):
    """`python -m training.train train.json` in a folder of its own; rank 1 dies, or raises, before `dies_at`."""
    folder.mkdir()
    package = shutil.copytree(ROOT / "training", folder / "training", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parent / "faulty_rank.py", package)
    with open(package / "step.py", "a") as stream:
        stream.write("\n\nfrom training.faulty_rank import train_step  # noqa\n")
    training = TrainJob.model_validate(job).training
    rates = [learning_rate(training.optimizer, step, training.steps) for step in dies_at]
    (package / "dies.json").write_text(json.dumps({"learning_rates": rates, "deaths": str(folder / "deaths"),
                                                  "raises": raises}))
    (folder / "train.json").write_text(json.dumps(job))
    environment = {k: v for k, v in os.environ.items() if k not in ("RAY_ADDRESS", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "-m", "training.train", "train.json"], cwd=folder, capture_output=True, text=True,
        timeout=240, env={**environment, "TMPDIR": str(folder), "RAY_TMPDIR": "/tmp"}, check=False,
    )


def text_job(corpus):
    """Two ranks learn the corpus; results go to `out` in the job's own folder."""
    architecture = {**ranks.QWEN2, "vocab_size": 512}
    return ranks.job(
        "out", world=2, model={"weights": "random", "architecture": architecture},
        data={"kind": "text", "path": str(corpus), "tokenizer": str(corpus / "tokenizer")},
        optimizer={"learning_rate": 1e-2, "warmup_steps": 2}, steps=STEPS, micro_batch=8, sequence_length=64,
        checkpoint={"every_steps": 4, "keep": 2},
    )


@pytest.mark.slow
def test_workers_learn_real_text_one_death_costs_nothing_and_one_too_many_ends_the_run(corpus, tmp_path):
    folder, job = tmp_path / "job", text_job(corpus)
    job["training"]["max_failures"] = 1
    ended = run(folder, job, dies_at=(7, STEPS))
    assert len((folder / "deaths").read_text()) == 2
    assert "resumed after step 4" in ended.stdout
    # the numbers of a step are read while the next one runs, so the last step before a death is not told
    assert f"step {STEPS - 2}/{STEPS}  loss " in ended.stdout

    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("tiny failed: rank 1: its process or node died")
    summary = json.loads((folder / "out" / "tiny" / "summary.json").read_text())
    assert (summary["status"], summary["restarts"], summary["steps"]) == ("failed", 1, STEPS - 2)
    assert last == f"tiny failed: {summary['reason']}"
    assert summary["last_loss"] < summary["first_loss"] - 0.5
    assert summary["versions"].keys() >= {"torch", "transformers", "ray", "python"}
    # that of step 8 is written while training goes on, and may have been on its way when the rank died
    assert Path(summary["checkpoint"]).name in ("step-00000004", "step-00000008")

    undisturbed = text_job(corpus)
    undisturbed["placement"]["storage"] = str(tmp_path / "undisturbed")
    assert ranks.run(2, work, undisturbed) == [None, None]
    assert ranks.losses(folder / "out" / "tiny") == ranks.losses(tmp_path / "undisturbed" / "tiny")[:STEPS - 2]


@pytest.mark.long
def test_a_rank_that_raises_once_costs_nothing_and_one_that_always_does_is_named(corpus, tmp_path):
    folder, job = tmp_path / "job", text_job(corpus)
    job["training"]["max_failures"] = 1
    ended = run(folder, job, dies_at=(7,), raises=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "resumed after step 4" in ended.stdout
    summary = json.loads((folder / "out" / "tiny" / "summary.json").read_text())
    assert (summary["status"], summary["restarts"], summary["steps"]) == ("succeeded", 1, STEPS)
    undisturbed = text_job(corpus)
    undisturbed["placement"]["storage"] = str(tmp_path / "undisturbed")
    assert ranks.run(2, work, undisturbed) == [None, None]
    assert ranks.losses(folder / "out" / "tiny") == ranks.losses(tmp_path / "undisturbed" / "tiny")

    ended = run(tmp_path / "again", job, dies_at=(7, 8), raises=True)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == "tiny failed: rank 1: ArithmeticError: the rank's own mistake"


@pytest.mark.parametrize(("failures", "reason"), [
    ({1: ArithmeticError("its own mistake")}, "rank 1: ArithmeticError: its own mistake"),
    ({3: KeyError("a"), 2: OSError("no such device")}, "rank 2: OSError: no such device"),
    # what the others say, whose connection broke, is not the cause
    ({0: RuntimeError("Connection closed by peer"), 1: RayActorError(error_msg="it was killed")},
     "rank 1: its process or node died (it was killed)"),
])
def test_the_failure_that_the_others_came_from_is_told(failures, reason):
    from training import train

    assert train.worker_failure(failures) == reason


@pytest.mark.parametrize(("change", "message"), [
    ({"steps": 0}, "training.steps: Input should be greater than or equal to 1"),
    ({"stepz": 5}, "training.stepz: Extra inputs are not permitted"),
    ({"data": {"kind": "text"}}, "training.data: kind text needs a path; for example path: /data/corpus"),
])
def test_a_bad_train_json_is_one_line_before_ray_starts(tmp_path, capsys, monkeypatch, change, message):
    from training import train

    monkeypatch.setattr(train.ray, "init", lambda **_: pytest.fail("Ray was started"))
    file = tmp_path / "train.json"
    file.write_text(json.dumps(ranks.job(tmp_path, **change)))
    assert train.main([str(file)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"{file}: {message}"]


@pytest.mark.parametrize(("text", "message"), [
    (None, "train.json: No such file or directory"),
    ("{", "train.json: Invalid JSON"),
])
def test_a_train_json_that_cannot_be_read_is_one_line(tmp_path, capsys, text, message):
    from training import train

    file = tmp_path / "train.json"
    if text is not None:
        file.write_text(text)
    assert train.main([str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_micro_batch_that_cannot_fit_is_refused_before_ray_starts(tmp_path, capsys, monkeypatch):
    from training import train

    monkeypatch.setattr(train.ray, "init", lambda **_: pytest.fail("Ray was started"))
    job = ranks.job(tmp_path, model={}, sequence_length=2048, micro_batch=512)
    job["placement"].update(device="cuda", backend="nccl", gpu="l4", gpu_memory_mib=22888, link_mbps=40000)
    file = tmp_path / "train.json"
    file.write_text(json.dumps(job))
    assert train.main([str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("training.micro_batch 512 does not fit: about ")


def test_storage_that_cannot_be_opened_is_one_line(tmp_path, capsys):
    from training import train

    file = tmp_path / "train.json"
    file.write_text(json.dumps(ranks.job("ftp://somewhere/else")))
    assert train.main([str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("placement.storage ftp://somewhere/else cannot be opened: ")
