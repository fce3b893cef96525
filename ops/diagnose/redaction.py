"""What leaves the house in a bundle: without account ids, keys, tokens and values that are meant to be secret."""

from __future__ import annotations

import re
from collections import Counter

_SECRET_NAME = (r"[\w.-]*(?:token|secret|passw(?:or)?d|api_?key|access_?key|credential|signature|private_?key)"
                r"[\w.-]*")
_RULES = (
    ("key", re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b")),
    ("token", re.compile(r"\b(?:hf_\w{10,}|gh[pousr]_\w{20,}|xox\w-[\w-]{10,}|sk-[\w-]{16,}|glpat-[\w-]{10,})")),
    ("token", re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?")),
    ("token", re.compile(r"(?<=[Bb]earer )[\w.~+/=-]{6,}")),
    ("private key", re.compile(r"-----BEGIN [\w ]*PRIVATE KEY-----.*?(?:-----END [\w ]*PRIVATE KEY-----|"
                               r"\Z)", re.DOTALL)),
    ("password in a URL", re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")),
    # {"name": "HF_TOKEN", "value": "…"}, in either order of what stands between
    ("environment value", re.compile(
        rf'(?<=")name"\s*:\s*"{_SECRET_NAME}"\s*,\s*"value"\s*:\s*"(?P<value>(?:[^"\\]|\\.)*)"', re.IGNORECASE)),
    ("environment value", re.compile(
        rf"(?:\b|_){_SECRET_NAME}[\"']?\s*[=:]\s*[\"']?(?P<value>(?!null\b|none\b|true\b|false\b|\[|"
        rf"\{{)[^\s\"',;&}}]{{4,}})",
        re.IGNORECASE)),
    ("account id", re.compile(r"(?<![\w.-])\d{12}(?![\w.])")),
)
_ADDRESS = re.compile(r"\b(?:ip-)?\d{1,3}([.-])\d{1,3}\1\d{1,3}\1\d{1,3}\b")


class Redactor:
    """Takes text after text; `counts` says of each kind how many values were taken out.

    An address gets the same stand-in wherever it occurs, so that lines can still be related. `addresses`: "kept" or
    "hidden".
    """

    def __init__(self, addresses: str = "kept") -> None:
        self.counts: Counter[str] = Counter()
        self._hide = addresses == "hidden"
        self._known: dict[str, str] = {}

    def clean(self, text: str) -> str:
        """The text with stand-ins such as `<token>`."""
        for kind, pattern in _RULES:
            text = pattern.sub(lambda found, kind=kind: self._stand_in(kind, found), text)
        return _ADDRESS.sub(self._address, text) if self._hide else text

    def told(self) -> str:
        """`2 account ids, 1 token`, or that there was nothing."""
        parts = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in sorted(self.counts.items())]
        return ", ".join(parts) or "nothing that looks secret was found"

    def _stand_in(self, kind: str, found: re.Match[str]) -> str:
        self.counts[kind] += 1
        stand_in = f"<{kind}>"
        if "value" not in found.re.groupindex:
            return stand_in
        start, end = found.span("value")
        return f"{found[0][:start - found.start()]}{stand_in}{found[0][end - found.start():]}"

    def _address(self, found: re.Match[str]) -> str:
        plain = found[0].removeprefix("ip-").replace("-", ".")
        self.counts["address"] += plain not in self._known
        return self._known.setdefault(plain, f"<address {len(self._known) + 1}>")
