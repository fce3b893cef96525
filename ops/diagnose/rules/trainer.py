"""The training itself: numbers, memory of the GPU, data and model files, and what our trainer says of its job."""

from __future__ import annotations

import re

from ops.diagnose.evidence import Evidence, Hit
from ops.diagnose.finding import INFERRED, LIKELY, STATED, SYMPTOM, Finding, Signature

_STEP = re.compile(r"\bstep\W{0,3}(?P<step>\d+).*?\bloss\W{0,3}(?P<loss>nan|[-+]?inf|"
                   r"[\d.]+(?:e[-+]?\d+)?)", re.IGNORECASE)
_GRAD = re.compile(r"\bgrad(?:ient)?[_ ]?norm\W{0,3}(?:is )?(?P<grad>nan|[-+]?inf|"
                   r"[\d.]+(?:e[-+]?\d+)?)", re.IGNORECASE)
_HALF = r"(?:param_dtype|reduce_dtype|dtype|precision|mixed_precision)\W+(?:torch\.)?(?:float16|fp16|half)\b|" \
        r"\bfp16\W+true"
_SCALER = re.compile(r"grad_?scaler\W+(?!null|none|false)\w", re.IGNORECASE)
_CUDA_OOM = re.compile(r"CUDA out of memory|torch(?:\.cuda)?\.OutOfMemoryError|CUDA error: out of memory|"
                       r"CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
_HUB = r"huggingface|hf_hub|HfHub|hf\.co|datasets|transformers"
# An error that our trainer ends a job with names its setting; so does what the run's summary keeps as its reason.
_OWN = re.compile(r"(?:JobError|AgreedError|\bfailed|"
                  r"\"reason\"):\s*\"?(?P<why>(?:[^\n]*\btraining\.[a-z_]+(?:\.[a-z_]+)*|(?:rank|ranks|step|node|"
                  r"all-reduce|the first all-reduce|placement)\b)[^\n]*)")


def findings(evidence: Evidence) -> list[Finding]:
    """Trainer, model and data."""
    own = [*_not_finite(evidence), *_gpu_memory(evidence), *_hub_limit(evidence), *_our_words(evidence)]
    named = [found for signature in SIGNATURES for found in signature.findings(evidence)]
    return [*own, *named, *([] if own or named else _traceback(evidence))]


def _not_finite(evidence: Evidence) -> list[Finding]:
    bad = [hit for hit in evidence.grep(("nan", "inf"), r"\b(?:loss|grad(?:ient)?[_ ]?norm)\W{0,3}(?:is )?(?:nan|"
                                                        r"[-+]?inf)\b")
           if not re.search(r"no(?:t any)? nan|nan_check|isnan", hit.line.text, re.IGNORECASE)]
    if not bad:
        return []
    lasting = _stays(evidence, bad)
    if not lasting:
        return []
    first, steps = bad[0], _STEP.search(bad[0].line.text)
    where = f"step {steps['step']}" if steps else "that step"
    lines = [*(hit.line for hit in _rising(evidence)), *(hit.line for hit in bad)]
    half = evidence.grep(("float16", "fp16", "half"), _HALF)
    scaled = evidence.grep("scaler", _SCALER)
    if half and not scaled:
        return [Finding(
            "trainer/fp16-overflow", "fp16 overflow: parameters or gradients are in float16 without a loss "
                                     "scaler, so the "
            f"gradient's norm overflows at {where} and the weights become NaN.",
            "Train in bf16 with a float32 reduce_dtype (MixedPrecisionPolicy; L4 and H100 support it, and it is "
            "Eagle Ray's default), or add a GradScaler that skips such steps; start again from a checkpoint "
            "before the norm rose.",
            [*(hit.line for hit in half), *lines], INFERRED)]
    rising = _rising(evidence)
    if rising or "max_skipped_steps" in first.line.text or evidence.has("skipped in a row", r"skipped in a row"):
        return [Finding(
            "trainer/diverged", f"Training diverged: loss or gradient norm are not finite from {where} on"
            + (", after the gradient norm had been rising" if rising else "") + "; the learning rate is too high "
                                                                                "for these "
            "data, or a batch is bad.",
            "Lower training.optimizer.learning_rate or raise training.optimizer.warmup_steps, look at the "
            "sequences of that step (docs/troubleshooting.md, \"A step is skipped\"), and start from a checkpoint "
            "before it.", lines,
            INFERRED if rising else LIKELY)]
    return [Finding(
        "symptom/not-finite", f"Loss or gradient norm are not finite from {where} on, and these lines do not tell "
                              "of what.",
        "Collect the steps before it (loss, gradient norm, learning rate), the precision settings, and whether a "
        "rerun on other nodes does the same at the same step.", lines, SYMPTOM)]


def _stays(evidence: Evidence, bad: list[Hit]) -> bool:
    """Whether training did not come back from it: an isolated step that was skipped is no fault."""
    last = bad[-1]
    rows = last.document.rows[last.at + 1:last.at + 400]
    after = [_STEP.search(row) for row in rows]
    finite = [step for step in after if step and not re.match(r"[-+]?(?:nan|inf)", step["loss"], re.IGNORECASE)]
    return len(finite) < 3 or "in a row" in last.line.text


def _rising(evidence: Evidence) -> list[Hit]:
    """Steps whose gradient norm grew tenfold over what it was before."""
    hits = [hit for hit in evidence.grep("grad", _GRAD) if _STEP.search(hit.line.text)]
    values = [(float(hit.match["grad"]), hit) for hit in hits
              if re.fullmatch(r"\d+\.?\d*(?:e[-+]?\d+)?", hit.match["grad"], re.IGNORECASE)]
    if len(values) < 3:
        return []
    usual = sorted(value for value, _ in values)[len(values) // 4]
    return [hit for value, hit in values if value > 10 * max(usual, 1e-9)][:3]


def _gpu_memory(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep(("out of memory", "outofmemory", "alloc_failed"), _CUDA_OOM)
    if not hits:
        return []
    context = " ".join(line.text for line in evidence.around(hits[0], before=40, after=3))
    in_loss = re.search(r"cross_entropy|log_softmax|lm_head|logits", context)
    size = re.search(r"Tried to allocate ([\d.]+ \w+)", context)
    where = " in the loss: logits of all tokens over the vocabulary in float32" if in_loss else ""
    return [Finding(
        "trainer/cuda-oom", f"CUDA out of memory: the GPU's memory does not hold this batch{where}"
        + (f" (it tried to allocate {size[1]})." if size else "."),
        "Lower training.micro_batch (auto chooses one that fits), set training.parallel.recompute=layers or a "
        "shorter training.sequence_length" + ("; compute the loss in chunks, as Eagle Ray's trainer does"
                                                if in_loss else "")
        + ". `eagleray plan` predicts what fits.", [hit.line for hit in hits], STATED)]


def _hub_limit(evidence: Evidence) -> list[Finding]:
    hits = [hit for hit in evidence.grep("429", rf"\b429\b[^\n]*(?:{_HUB})|(?:{_HUB})[^\n]*\b429\b")
            if "pull" not in hit.line.text.lower()]
    if not hits:
        return []
    return [Finding(
        "data/hub-rate-limit", "Every rank asks the Hugging Face Hub at the same time, from one NAT address"
        + (" and without a token" if evidence.has("hf_token", r"no HF_TOKEN|HF_TOKEN[^\n]*(?:not set|unset|"
                                                              r"missing)", notes=True)
           else "") + ", and the Hub limits the rate (HTTP 429).",
        "Set HF_TOKEN from a Secret; better, download model and data once (to S3 or FSx, or by one rank of each "
        "node) and run the other ranks with HF_HUB_OFFLINE=1 and HF_DATASETS_OFFLINE=1. training.data.path and "
        "training.model.name take a folder or an s3:// prefix.", [hit.line for hit in hits], STATED)]


def _our_words(evidence: Evidence) -> list[Finding]:
    """The line that our own trainer ends a job with: it names setting and remedy itself."""
    hits = [hit for hit in evidence.grep(("joberror", "agreederror", "failed:", '"reason"'), _OWN)
            if not re.search(r"collective operation|Watchdog|loss is (?:nan|inf)|norm is (?:nan|"
                             r"inf)", hit.line.text)]
    if not hits:
        return []
    why = hits[0].match["why"].strip(' ",')
    cause, _, remedy = why.partition("; ")
    return [Finding(
        "trainer/refused", f"The trainer refused the job: {cause}.",
        f"{(remedy or 'Change the setting that the line names')[0].upper()}"
        f"{(remedy or 'Change the setting that the line names')[1:]} (docs/troubleshooting.md has these messages).",
        [hit.line for hit in hits], STATED)]


def _traceback(evidence: Evidence) -> list[Finding]:
    hits = evidence.grep("error", r"^\W*(?:\[rank\d+\]:\s*)?(?P<what>(?:[\w.]+\.)?(?:KeyError|TypeError|"
                                  r"AttributeError|ImportError|ModuleNotFoundError|NameError|AssertionError|"
                                  r"SyntaxError|IndexError|ValueError|FileNotFoundError|ZeroDivisionError|"
                                  r"RuntimeError): .+)$")
    hits = [hit for hit in hits if not re.search(r"DataLoader|CUDA|NCCL|collective", hit.line.text)]
    if not hits:
        return []
    frames = [line for line in evidence.around(hits[0], before=30, after=0) if re.search(r'File "', line.text)]
    frame = re.search(r'File "([^"]+)", line (\d+)', frames[-1].text) if frames else None
    if frame is None:
        return []
    place = f"{frame[1].rsplit('/', 1)[-1]} line {frame[2]}"
    return [Finding(
        "trainer/exception", f"The program raised an exception in {place}: {hits[0].match['what'][:300]}",
        f"Mend {place}; `eagleray rehearse` runs the job on this machine before it costs anything.",
        [*frames[-2:], *(hit.line for hit in hits)], INFERRED)]


SIGNATURES = (
    Signature(
        "trainer/tied-weights", ("shared with a parameter", "already managed by"),
        r"shared with a parameter already managed|already managed by another FSDP|tied[^\n]*different FSDP",
        "The model ties its output head to its embedding, and FSDP2 was told to shard the two in different groups.",
        "Call fully_shard([embedding, norm, lm_head]) as one group, or leave both to the root; Eagle Ray's "
        "trainer does so."),
    Signature(
        "trainer/checkpoint-mismatch", ("size mismatch", "missing key", "unexpected key", "state_dict",
                                        "checkpoints of a training"),
        r"size mismatch for|Missing key\(s\) in state_dict|Unexpected key\(s\)|Error\(s\) in loading state_dict|"
        r"holds checkpoints of a training with other settings",
        "The checkpoint is of another model or other settings than the job's.",
        "Resume with the settings that wrote it, or start in a new run folder (another training name or storage)."),
    Signature(
        "trainer/no-compiler", ("failed to find c compiler", "ptxas", "gcc", "inductor", "triton"),
        r"Failed to find C compiler|InductorError|BackendCompilerFailed|ptxas[^\n]*(?:error|fatal)",
        "torch.compile could not build its kernels in this image.",
        "Use the image unmodified (it has a compiler), or set training.parallel.compile=false."),
    Signature(
        "trainer/bf16-updates", ("bf16", "bfloat16"),
        r"(?:weights|parameters|params|master)[^\n]*(?:bf16|bfloat16)[^\n]*(?:AdamW|no master|updates)|"
        r"updates?[^\n]*(?:vanish|lost|round)[^\n]*(?:bf16|bfloat16)",
        "The master weights are in bf16, whose 8 bits swallow small updates, so the loss stays where it is.",
        "Keep parameters in float32 with MixedPrecisionPolicy(param bf16, reduce float32), as Eagle Ray's trainer "
        "does.",
        confidence=LIKELY),
    Signature(
        "data/hub-gated", ("gated", "401 client error", "403 client error", "repository not found", "cannot "
                                                                                                    "access"),
        rf"GatedRepo|gated repo|is gated|(?:401|403) Client Error[^\n]*(?:{_HUB})|Repository Not "
        rf"Found[^\n]*(?:{_HUB})",
        "The Hugging Face Hub does not show the repository to this job: it is a gated model or a private one, and "
        "HF_TOKEN is missing or may not read it.",
        "Accept its licence on the Hub, put a token that may read it into a Secret and name that in "
        "ray.hf_token_secret (elsewhere, give it to the pods as HF_TOKEN), or copy the model to S3."),
    Signature(
        "data/hub-unreachable", ("huggingface", "hf.co", "huggingface_hub", "localentrynotfound"),
        rf"(?:{_HUB})[^\n]*(?:Name or service not known|Temporary failure in name resolution|Failed to resolve|"
        r"ConnectTimeout|Connection refused|Network is unreachable|Max retries exceeded)|LocalEntryNotFoundError|"
        r"(?:Name or service not known|Failed to resolve|Connect\w*Timeout|Max retries)[^\n]*(?:huggingface|"
        r"hf\.co)",
        "The pods do not reach the Hugging Face Hub: no DNS, or no way out (NAT, NetworkPolicy).",
        "Let the pods resolve names and reach port 443 (NAT gateway, egress of NetworkPolicies, CoreDNS), or copy "
        "model and data to S3 and name them there.", unless=r"\b429\b"),
    Signature(
        "data/hub-offline", ("offline",), r"(?:OfflineModeIsEnabled|offline mode[^\n]*(?:cannot|couldn't|not)|"
                                          r"HF_HUB_OFFLINE[^\n]*not)",
        "The Hub's offline mode is on (HF_HUB_OFFLINE), and the files are not in the node's cache.",
        "Download them first on each node, or name a folder or s3:// prefix, or turn the offline mode off."),
    Signature(
        "data/unreadable", ("parquet", "json", "utf-8", "arrow", "corrupt", "safetensor"),
        r"ArrowInvalid|Parquet magic bytes not found|JSONDecodeError|is not (?:UTF-8|JSON)|not a readable Parquet|"
        r"HeaderTooLarge|InvalidHeaderDeserialization|SafetensorError|corrupt(?:ed)? (?:file|data|shard)|"
        r"UnicodeDecodeError",
        "A data or model file is damaged, cut off or of another format than it should be (a download that broke "
        "off, or an error page saved in its place).",
        "Compare its size with the source and fetch it again, one download a node; the line names the "
        "file.", confidence=INFERRED),
    Signature(
        "data/dns", ("name resolution", "name or service", "resolve host", "getaddrinfo"),
        r"Temporary failure in name resolution|Name or service not known|Could not resolve host|getaddrinfo "
        r"failed|EAI_AGAIN",
        "Names are not resolved in the pod: CoreDNS does not run or a NetworkPolicy blocks port 53.",
        "See `kubectl -n kube-system get pods -l k8s-app=kube-dns`, and allow egress to port "
        "53.", confidence=INFERRED),
)
