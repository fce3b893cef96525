"""Signs that all is well, lines that only sound alarming, and alarms that no rule accounts for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ops.diagnose.evidence import Document, Evidence, Hit
from ops.diagnose.lines import Line, Moment, moment
from ops.diagnose.rules.stacks import failures
from ops.diagnose.rules.wire import judged

STEP = re.compile(r"\bstep\W{0,3}(?P<step>\d+).*?\bloss\W{0,3}(?P<loss>[\d.]+(?:e[-+]?\d+)?)\b", re.IGNORECASE)
_ALARM = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|Traceback|CREATE_FAILED|UPDATE_FAILED|DELETE_FAILED|ROLLBACK_\w+|CrashLoopBackOff|"
    r"OOMKilled|Evicted|SIGKILL|SIGSEGV|SIGABRT|core dumped|panic)\b|(?-i:\b\w+(?:Error|Exception)\b: )|NCCL WARN|"
    r"exit(?:ed with)? (?:code|status)\W{0,3}[1-9]|\bError: |Watchdog caught|\bNotReady\b|\bFailed\b|\bkilled\b|"
    r"jobStatus\W+FAILED|\bRC: [1-9]", re.IGNORECASE)
_ALARMING = ("error", "fatal", "critical", "traceback", "fail", "exception", "warn", "killed", "evicted", "oom",
             "rc: ", "sig", "panic", "core dumped", "exit", "rollback", "crashloop", "watchdog", "notready")
# What alarms a reader and means nothing: counts of zero, denials, and NCCL's search for optional plugins.
_HARMLESS = re.compile(
    r"\b(?:no|0|zero|without(?: any)?) (?:\w+ )?(?:errors?|failures?|faults?|failed|exceptions?)\b|"
    r"(?:errors?|failures?|failed|fail_count|exceptions?|evicted|killed|restarts?|oom_kill)\w*\W{0,3}(?:=|"
    r":)\W{0,2}(?:0|false|none|\[\])\b|ncclCollNetPlugin|lib(?:nccl)?-?(?:profiler|tuner|env)|nccl-(?:profiler|"
    r"tuner|env)|NET/IB ?: No device|ncclCollNet|disabling GDR|Need to force simple protocol|GPU Direct RDMA "
    r"Disabled|error_?handling|on_?error|max_?failures|failure_?config|failure[_ ]policy|errors=|error rate|"
    r"--fail|backoffLimit|TORCH_NCCL|last_error\W+(?:none|null)|FutureWarning|DeprecationWarning|UserWarning|"
    r"retr(?:y|ied|ying)[^\n]*succeeded|Failed to find (?:a )?\S*(?:symbol|Plugin)|Sync(?:ing)? complete|"
    r"ERROR_LEVEL|log_?level\W+error|desired|NotReady -> Ready",
    re.IGNORECASE)
_ENDED_WELL = re.compile(r"\bsucceeded\b|jobStatus\W+SUCCEEDED|jobDeploymentStatus\W+Complete|\bSUCCEEDED\b|Job "
                         r"'\S+' succeeded|(?:training|run) (?:complete|finished|done)", re.IGNORECASE)
# Minutes that these take when nothing is wrong.
_USUAL = {"initializing": 20, "deleting": 30, "creating": 40, "pulling": 20}


@dataclass(frozen=True)
class Sign:
    """Something that goes as it should: in words, with its lines, the minutes since it began and the usual ones."""

    text: str
    lines: list[Line]
    minutes: float | None = None
    usual: int = 0

    @property
    def late(self) -> bool:
        """Whether it takes longer than such things do."""
        return self.minutes is not None and self.minutes > self.usual


def signs(evidence: Evidence) -> list[Sign]:
    """What is seen to go well."""
    now = _now(evidence)
    return [*_training(evidence), *_wire(evidence), *_job(evidence, now), *_pulling(evidence),
            *_stack(evidence, now), *_ready(evidence)]


def alarms(evidence: Evidence, accounted: set[tuple[str, int]]) -> list[Line]:
    """Lines that speak of a failure, are known neither as harmless nor by a finding, and were not overcome."""
    found: list[Line] = []
    for document in evidence.documents:
        for index in sorted({i for word in _ALARMING for i in document.holding(word)}):
            line = document.line(index)
            if (line.source, line.number) in accounted or line.is_note or not _ALARM.search(line.text):
                continue
            if not _ALARM.search(_HARMLESS.sub("", line.text)):
                continue
            found.append(line)
            if len(found) > 500:
                return found
    warnings = [event.line for event in evidence.events
                if event.warning and (event.line.source, event.line.number) not in accounted
                and not _passed(evidence, event.subject, event.line)]
    kept = [line for line in found if not went_on(evidence, line)]
    return [*kept, *(line for line in warnings if line not in kept)]


def went_on(evidence: Evidence, line: Line) -> bool:
    """Whether at least two steps with a finite loss, or a good end, follow a line in its document."""
    document = evidence.document(line.source)
    if document is None:
        return False
    steps, ends = _progress(document)
    return sum(number > line.number for number in steps) >= 2 or any(number > line.number for number in ends)


@lru_cache(maxsize=64)
def _progress(document: Document) -> tuple[list[int], list[int]]:
    """Numbers of the lines that tell of a step with a finite loss, and of a good end."""
    steps = [line for i in document.holding("loss") if STEP.search((line := document.line(i)).text)]
    ends = [line for i in document.holding("succe") if _ENDED_WELL.search((line := document.line(i)).text)]
    return [line.number for line in steps], [line.number for line in ends]


def _passed(evidence: Evidence, subject: str, line: Line) -> bool:
    """Whether a later event of the same pod shows that it went on."""
    return any(event.subject == subject and event.reason in ("Started", "Scheduled", "Pulled")
               and (event.line.source, event.line.number) > (line.source, line.number) for event in evidence.events)


def _now(evidence: Evidence) -> Moment | None:
    """What `date` printed, typed beside the evidence."""
    for hit in evidence.grep("date", r"^\$ date\b", notes=True):
        for line in evidence.around(hit, before=0, after=1)[1:]:
            if found := moment(line.raw):
                return found
    return None


def _training(evidence: Evidence) -> list[Sign]:
    steps = evidence.grep("loss", STEP)
    if not steps:
        return []
    last = max(steps, key=lambda hit: int(hit.match["step"]))
    return [Sign(f"training goes on (step {last.match['step']}, loss {last.match['loss']})", [last.line])]


def _wire(evidence: Evidence) -> list[Sign]:
    efa = evidence.grep("provider is efa", r"Selected provider is efa")
    if not efa:
        return []
    found = judged(evidence)
    ranks = [rank for rank in found.ranks if rank.provider and "efa" in rank.provider]
    used = any("NET/Libfabric" in rank.channels for rank in ranks)
    no_gdr = any(rank.gdr is False for rank in ranks)
    text = "the provider is efa" + (", and channels between nodes go over it" if used else "")
    if no_gdr:
        text += ("; GPUDirect RDMA exists on the P family alone, GPUs without NVLink use SHM inside a node, and "
                 "the lines on CollNet and optional plugins are informational")
    return [Sign(text, [hit.line for hit in efa])]


def _job(evidence: Evidence, now: Moment | None) -> list[Sign]:
    states = evidence.grep("jobdeploymentstatus", r"jobDeploymentStatus\W+(?P<state>Initializing|Running|Complete|"
                                                  r"Waiting)")
    rows = evidence.grep(("initializing", "running", "complete"),
                         r"^\S+\s+(?P<job>SUCCEEDED|RUNNING|PENDING)?\s*(?P<state>Initializing|Running|Complete)\s")
    found = []
    for hit in states + rows:
        state = hit.match["state"]
        if state != "Initializing":
            found.append(Sign(f"the RayJob is {state}", [hit.line]))
            continue
        began = evidence.grep("starttime", r"startTime\W+(?P<at>\S+)")
        since = moment(began[0].line.raw) if began else None
        minutes = now.minutes_after(since) if now and since else None
        ready = evidence.has("headpod", r"HeadPodRunningAndReady")
        text = "the RayJob initializes" + (": the head is ready and workers are on their way" if ready else "")
        found.append(Sign(text, [hit.line], minutes, _USUAL["initializing"]))
    return found


def _pulling(evidence: Evidence) -> list[Sign]:
    found = []
    for event in evidence.events:
        if event.reason != "Pulling":
            continue
        if not any(later.subject == event.subject and later.reason in ("Pulled", "Started", "Failed")
                   for later in evidence.events):
            minutes = event.age / 60 if event.age is not None else None
            found.append(Sign("a pod still pulls its image, which for a large image (10 GB and more) takes minutes",
                              [event.line], minutes, _USUAL["pulling"]))
    return found


def _stack(evidence: Evidence, now: Moment | None) -> list[Sign]:
    if not evidence.stack_events or failures(evidence):
        return []
    open_ones = {}
    for event in evidence.stack_events:
        open_ones[event.resource] = event
    last = [event for event in open_ones.values() if event.status.endswith("IN_PROGRESS")]
    if any("ROLLBACK" in event.status for event in evidence.stack_events):
        return []
    if not last:
        return [Sign("the stack's resources are complete", [evidence.stack_events[-1].line])]
    began = last[0].line.moment
    minutes = now.minutes_after(began) if now and began else None
    deleting = any(event.status.startswith("DELETE") for event in last)
    text = ("deletion is in progress: EKS sets a node group to zero and drains each node, and GPU instances take "
            "minutes to shut down" if deleting else
            "the stack is being made or changed: a control plane takes some 10 minutes, a node group with GPUs up "
            "to 20")
    return [Sign(text, [event.line for event in last], minutes, _USUAL["deleting" if deleting else "creating"])]


def _ready(evidence: Evidence) -> list[Sign]:
    found: list[Sign] = []
    events = [event for event in evidence.events
              if not event.warning and event.reason in ("Started", "Scheduled", "Created")]
    if events:
        found.append(Sign("pods are scheduled and started", [events[-1].line]))
    nodes: list[Hit] = evidence.grep(" ready ", r"^\S+\s+Ready\s+\S+\s+\d+\w\s+v1\.")
    pods = evidence.grep((" running ", " completed "), r"^\S+\s+(?P<a>\d+)/(?P<b>\d+)\s+(?:Running|"
                                                       r"Completed)\s+\d+")
    healthy = [hit for hit in pods if hit.match["a"] == hit.match["b"] or "Completed" in hit.line.raw]
    if evidence.pods and all(pod.phase in ("Running", "Succeeded") for pod in evidence.pods.values()):
        found.append(Sign("pods are Running", [next(iter(evidence.pods.values())).line]))
    if nodes:
        found.append(Sign(f"{len(nodes)} nodes are Ready", [nodes[0].line]))
    if healthy and len(healthy) == len(pods):
        found.append(Sign("pods are Running", [healthy[0].line]))
    active = evidence.grep('"active"', r'"status": "ACTIVE"')
    if active and evidence.has('"issues"', r'"issues": \[\]'):
        found.append(Sign("the node group is ACTIVE without issues", [active[0].line]))
    ended = evidence.grep("succe", _ENDED_WELL)
    if ended:
        found.append(Sign("the job succeeded", [ended[-1].line]))
    scaling = [event for event in evidence.events if event.reason == "TriggeredScaleUp"]
    if scaling:
        age = scaling[-1].age
        found.append(Sign("the autoscaler has asked for nodes, which take minutes to come", [scaling[-1].line],
                          age / 60 if age is not None else None, _USUAL["initializing"]))
    return found
