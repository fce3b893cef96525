"""What one line of a log says about the wire: the only place that knows how NCCL, aws-ofi-nccl and Libfabric write.

Two rules keep a verdict honest. Proof is read only from a line that is understood from its header to its end.
A fault is read from any part of any line, garbled or not.

Formats: NCCL 2.12 to 2.31 (src/init.cc, src/transport/*.cc, src/plugin/net.cc), aws-ofi-nccl 1.1 to 1.21
(src/nccl_ofi_net.cpp, nccl_ofi_rdma.cpp, platform-aws.cpp), Libfabric's EFA provider (prov/efa/src/efa_errno.h).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

LIBFABRIC, SOCKET = "Libfabric", "Socket"
_SOCKET_CHANNEL = f"NET/{SOCKET}"
EFA_PROVIDERS = {"efa", "efa-direct"}
TCP_PROVIDERS = {"tcp", "sockets", "udp"}

# Characters. NCCL's lines have at most 1 KiB: a longer one is looked through for faults and is no proof.
_LONGEST = 4096

# Who printed a line: hostname and process id, as NCCL's header has them.
Speaker = tuple[str, int]


class Channel(NamedTuple):
    """`Channel 00/0 : 7[3] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA`; ranks are those of its communicator."""

    own: int
    peer: int
    transport: str  # NET/Libfabric, NET/Socket, P2P, SHM, COLLNET/…
    gdr: bool

    @property
    def between_nodes(self) -> bool:
        return "NET/" in self.transport


class Communicator(NamedTuple):
    """`comm 0x… rank 3 nranks 8 … commId 0x… - Init COMPLETE`, or the line with nNodes."""

    ident: str  # commId; "" where the line has none
    rank: int
    size: int
    nodes: int = 0  # 0 where the line has none
    device: int = -1  # CUDA device; -1 where the line has none
    phase: str = ""  # START, COMPLETE or ""


class Said(NamedTuple):
    """All that a line says.

    `speaker` is None for a line without NCCL's header; `tag` is what stood before the header (Ray's or MPI's
    prefix), by which such a line may still find its process. `facts` are (name, value) of what NCCL chose.
    """

    speaker: Speaker | None
    tag: str
    channel: Channel | None = None
    comm: Communicator | None = None
    facts: tuple[tuple[str, str], ...] = ()
    faults: tuple[str, ...] = ()
    text: str = ""
    repeated: bool = False
    collective: bool = False


_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_TIME = re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s*")
# Ray: one line stands for 16 others, whose speakers are not shown.
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
# host:pid:thread [device], at the end of what stands before `NCCL INFO` and followed by a place before `NCCL WARN`
_INFO_HEAD = re.compile(r"(?:^|(?<=[\s>:|\])]))(\w[\w.-]*):(\d+):\d+ \[-?\d+\]$")
_WARN_HEAD = re.compile(r"(?:^|(?<=[\s>:|\])]))(\w[\w.-]*):(\d+):\d+ \[-?\d+\](?= |$)")
_TAG = re.compile(
    r"\s*(\[pod/[^\]]+\]|\([^()]*pid=\d+[^()]*\)|\[[^\]<]*\d+\]<std\w+>:|\[(?:default|rank)?\d+\]:)\s*")

_CHANNEL = re.compile(
    r"Channel \d+(?:/\d+)? : (\d+)\[[0-9a-f]+\] -> (\d+)\[[0-9a-f]+\] (?:\[(send|receive)\] )?via "
    r"(?:(NET/(?:AWS )?[\w.-]+)/\d+(?:\(\d+\))?|(P2P|SHM)/[\w ]+(?:\[[0-9a-f]+\])?|(direct shared memory))"
    r"((?:/[\w=.]+(?:\[[0-9a-f]+\])?|\(PCI\))*)(?: comm 0x\w+ nRanks \d+)?\s*$")
_COLLNET = re.compile(r"CollNet \d+(?:/\d+)? : (\d+) \[(?:send|receive)\] via (COLLNET/[\w.-]+)/\d+[\w/()]*\s*$")
_COMM = re.compile(r"\brank (\d+) n[rR]anks (\d+)\b(?: nNodes (\d+) localRanks \d+ localRank \d+)?")
_COMM_ID = re.compile(r"\bcommId 0x([0-9a-f]+)")
_DEVICE = re.compile(r"\bcudaDev (\d+)")
_PHASE = re.compile(r"- ?Init (START|COMPLETE)\s*$")
_FACTS = (
    ("provider", re.compile(
        r"NET/OFI Selected provider is ([^\s,]+)(?:, fabric is [^\s,]+)?(?: \(found \d+ nics?\))?\s*$",
        re.IGNORECASE)),
    ("network", re.compile(r"Using network ((?:AWS )?[\w.-]+)\s*$")),
    ("network", re.compile(r"Assigned NET plugin ((?:AWS )?[\w.-]+) to comm\s*$")),
    ("plugin", re.compile(r"NET/OFI (?:Initializing|Using) (aws-ofi-nccl \S+)\s*$")),
    ("nccl", re.compile(r"(?:NCCL )?version (\d[\w.]*)(?:\+\S+)?\s*$")),
    ("gdr", re.compile(r"Connected all rings, use ring PXN \d GDR ([01])\s*$")),
)

# Each fault: a word that a line must hold (cheap to look for), then the pattern that decides.
_FAULTS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (code, word, re.compile(pattern, re.IGNORECASE)) for code, word, pattern in (
        ("socket_channel", "Socket", r"via NET/Socket/"),
        ("socket_network", "Socket", r"Using network Socket|Assigned NET plugin Socket"),
        ("socket_prepared", "Socket", r"Initialized NET plugin Socket"),
        ("no_eligible_provider", "rovider",
         r"No eligible providers were found|n[o']t find any optimal provider(?! supporting)"),
        ("plugin_not_found", "Could not find:", r"Could not find:[^\n]*libnccl-net"),
        ("plugin_absent", "lugin",
         r"NET/Plugin ?: (?:\S+ )*No plugin found|NET/Plugin ?: Plugin load \S*\s*returned|"
         r"NET/Plugin ?: Most recent plugin load"),
        ("plugin_load_failed", "lugin",
         r"External network plugin \S+ is unsupported|Failed to find ncclNetPlugin symbol|"
         r"NET/Plugin: \S*libnccl-net\S*: "),
        ("plugin_init_failed", "nitializ",
         r"NET/OFI [^\n]*initialization failed|Failed to initialize NET plugin (?:AWS )?Libfabric|"
         r"NET/OFI [^\n]*Failing initialization"),
        ("protocol_failed", "nitializ", r"Failed to initialize (?:sendrecv|rdma) protocol(?!:)"),
        ("network_not_found", "Error: network", r"Error: network [^\n]*not found"),
        ("network_not_found", "NET plugin", r"Failed to initialize any NET plugin"),
        ("peer_silent", "4126", r"\b4126\b[^\n]*Unresponsive|(?:Error|prov_errno): ?4126\b"),
        ("peer_silent", "Unre", r"Unreachable remote|Unresponsive receiver \(reachable"),
        ("peer_silent", "security group", r"This error indicates that the security group"),
        ("efa_peer_lost", "previously", r"Unresponsive (?:remote|receiver)[^\n]*previously"),
        ("efa_peer_lost", "by remote peer", r"completed with error[^\n]*Connection was reset by remote peer"),
        ("efa_peer_lost", "because the peer", r"Operation aborted because the peer"),
        ("efa_request_failed", "completed with error", r"NET/OFI [^\n]*completed with error"),
        ("memlock_limit", "4112", r"EFA internal error: \(?4112|prov_errno: 4112|Error: 4112"),
        ("memlock_limit", "annot allocate memory",
         r"Libfabric error: \(-12\)|(?:NET/OFI|efa:|ibv_reg_mr|fi_mr_reg|register MR)[^\n]*Cannot allocate memory"),
        ("huge_pages", "huge", r"usage of huge page is incompatible|fork support and huge pages is not|"
                               r"Insufficient hugepages|[Cc]annot allocate[^\n]*huge ?page"),
        ("huge_pages", "FI_EFA_USE_HUGE_PAGE", r"FI_EFA_USE_HUGE_PAGE has been"),
        ("fork_unsafe", "fork()", r"to the fork\(\) system call to create a child|EFA provider[^\n]*fork\(\)"),
        ("pod_identity_nic", "pod-id-link", r"(?:NET/Socket|Bootstrap)[^\n]*pod-id-link"),
        ("pod_identity_nic", "169.254.170.", r"(?:NET/Socket|Bootstrap|connect)[^\n]*169\.254\.170\."),
        ("nccl_failed", "NCCL error", r"NCCL error(?: in)?:"),
        ("nccl_failed", "ncclRemoteError", r"ncclRemoteError"),
        ("nccl_failed", "ncclSystemError", r"ncclSystemError"),
        ("nccl_failed", "network error", r"remote process exited or there was a network error"),
        ("nccl_failed", "system error", r"unhandled system error"),
    ))
_PLUGIN_NAMES = re.compile(r"Could not find:((?: ?[\w./+-]+)*)")
_RIGHT_PLUGIN = {"ofi", "libnccl-net-ofi.so", "libnccl-net.so"}
# A step that reported its loss, or torch's watchdog: collectives have passed over this wire.
_COLLECTIVE = re.compile(r"\bstep\W{0,3}\d+\b.*\bloss\b|last completed work: ?[1-9]")

COLLECTIVE_WORDS = ("loss", "completed work")
_ALL_WORDS = {" via ", "anks ", "rovider", "NET plugin", "Using network", "aws-ofi-nccl", "CCL version",
              "use ring PXN", "across cluster]", "Bootstrap", *(word for _, word, _ in _FAULTS)}
# A line without any of these words says nothing here and is not looked at.
WORDS = tuple(sorted(word for word in _ALL_WORDS if not any(other in word for other in _ALL_WORDS - {word})))


def said(line: str) -> Said | None:
    """What a line (without its end) says, if only who wrote it; None where that is not told either."""
    if len(line) > _LONGEST:
        found = _faults(line, ())
        return Said(None, "", faults=found, text=line[:300]) if found else None
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    repeated = "across cluster]" in line and _REPEATED.search(line) is not None
    if repeated:
        line = _REPEATED.sub("", line)
    before, mark, message = line.partition(" NCCL INFO ")
    head = _info_head(before) if mark else None
    understood = _message(message) if head else None
    if head is None or understood is None:
        return _without_proof(line, repeated)
    speaker, tag = head
    channel, comm, facts = understood
    if channel is not None:
        if channel.transport == _SOCKET_CHANNEL:
            return Said(speaker, tag, channel, faults=("socket_channel",), text=line[-300:], repeated=repeated)
        return Said(speaker, tag, channel, repeated=repeated)
    found = _faults(line, facts)
    return Said(speaker, tag, None, comm, facts, found, line.strip()[:300] if found else "", repeated)


def _without_proof(line: str, repeated: bool) -> Said | None:
    """A warning, or a line without NCCL's header: only faults, and whether the job went on."""
    found = _faults(line, ())
    collective = "loss" in line or "completed work" in line
    collective = collective and _COLLECTIVE.search(line) is not None
    if not (found or collective or repeated):
        return None
    head = _WARN_HEAD.search(line) if line.count("NCCL ") == line.count("NCCL WARN ") == 1 else None
    if head is not None:
        speaker, tag = (head[1], int(head[2])), _TIME.sub("", line[:head.start()]).strip()[:200]
    else:
        prefix = _TAG.match(_TIME.sub("", line, count=1))
        speaker, tag = None, prefix[1] if prefix else ""
    return Said(speaker, tag, faults=found, text=line.strip()[:300] if found else "", repeated=repeated,
                collective=collective)


@lru_cache(maxsize=8192)
def _info_head(before: str) -> tuple[Speaker, str] | None:
    head = _INFO_HEAD.search(before)
    return head and ((head[1], int(head[2])), _TIME.sub("", before[:head.start()]).strip()[:200])


@lru_cache(maxsize=8192)  # the ranks of a job say the same, many times
def _message(message: str) -> tuple[Channel | None, Communicator | None, tuple[tuple[str, str], ...]] | None:
    if "NCCL INFO" in message or "NCCL WARN" in message:
        return None  # two lines written into each other
    channel = _channel(message) if " via " in message else None
    comm = _communicator(message) if "anks " in message else None
    return channel, comm, _facts(message)


def _channel(message: str) -> Channel | None:
    match = _CHANNEL.match(message)
    if match is None:
        reduced = _COLLNET.match(message)
        return Channel(int(reduced[1]), int(reduced[1]), reduced[2], False) if reduced else None
    first, second, way, network, local, _, rest = match.groups()
    own, peer = (second, first) if way == "receive" else (first, second)
    transport = plain_network(network) if network else local or "SHM"
    return Channel(int(own), int(peer), transport, "GDRDMA" in rest)


def _communicator(message: str) -> Communicator | None:
    match = _COMM.search(message)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    ident, device, phase = _COMM_ID.search(message), _DEVICE.search(message), _PHASE.search(message)
    return Communicator(ident[1].lstrip("0") if ident else "", int(match[1]), int(match[2]), int(match[3] or 0),
                        int(device[1]) if device else -1, phase[1] if phase else "")


def _facts(message: str) -> tuple[tuple[str, str], ...]:
    for name, pattern in _FACTS:
        match = pattern.match(message)
        if match and not _cut_short(match[1]):
            return ((name, plain_network(match[1]) if name == "network" else match[1]),)
    return ()


def _cut_short(name: str) -> bool:
    """Whether it is the beginning of a name that is known: the log was cut there, and nothing else is used."""
    known = ("libfabric", "aws libfabric", "socket", "efa")
    return name.lower() not in known and any(full.startswith(name.lower()) for full in known)


def _faults(line: str, facts: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    found = {code for code, word, pattern in _FAULTS if word in line and pattern.search(line)}
    if "plugin_not_found" in found and not _names_of(line) & _RIGHT_PLUGIN:
        found = found - {"plugin_not_found"} | {"plugin_name_wrong"}
    for name, value in facts:
        if name == "network" and value not in (LIBFABRIC, SOCKET):
            found.add("other_network")
    provider = _selected_provider(line)
    if provider is not None and provider not in EFA_PROVIDERS:
        # tcp;ofi_rxm is tcp with a layer on it
        found.add("provider_tcp" if provider.split(";")[0] in TCP_PROVIDERS else "provider_other")
    return tuple(sorted(found))


def _selected_provider(line: str) -> str | None:
    match = re.search(r"Selected provider is ([\w;.-]+)", line, re.IGNORECASE) if "rovider is " in line else None
    if match is None or _cut_short(match[1]):
        return None
    return match[1].lower()


def _names_of(line: str) -> set[str]:
    match = _PLUGIN_NAMES.search(line)
    return {name.rstrip(".").rsplit("/", 1)[-1] for name in match[1].split()} if match else set()


def plain_network(name: str) -> str:
    """One name for Libfabric: until 1.13 the plugin called itself `AWS Libfabric`."""
    return re.sub(r"(?i)(?:AWS )?libfabric$", LIBFABRIC, name)
