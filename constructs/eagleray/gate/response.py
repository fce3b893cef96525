"""The answer of a custom resource to CloudFormation."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

# CloudFormation refuses answers above 4 KB.
_LONGEST_TEXT = 1500
_TRIES, _SECONDS = 3, 3


def send(event: Mapping[str, Any], *, status: str, physical_id: str, reason: str = "",
         data: Mapping[str, str] | None = None) -> None:
    """Put the answer to the address that the event names, trying again when the network fails.

    Args:
        event: what CloudFormation sent.
        status: SUCCESS or FAILED.
        physical_id: id of the resource; another one than before means that it was replaced.
        reason: what the stack's event shows for FAILED.
        data: what Fn::GetAtt can read.

    Raises:
        OSError: if CloudFormation's address cannot be reached.
    """
    body = json.dumps({
        "Status": status, "Reason": shortened(reason), "PhysicalResourceId": physical_id,
        "StackId": event["StackId"], "RequestId": event["RequestId"],
        "LogicalResourceId": event["LogicalResourceId"],
        "Data": {name: shortened(value) for name, value in (data or {}).items()},
    }).encode()
    # The address is signed for a request without a content type.
    request = urllib.request.Request(event["ResponseURL"], data=body, method="PUT", headers={"Content-Type": ""})
    for attempt in range(1, _TRIES + 1):
        try:
            urllib.request.urlopen(request, timeout=_SECONDS).close()
            return
        except urllib.error.URLError as error:
            print(f"CloudFormation could not be reached, attempt {attempt}: {error}")
            if attempt == _TRIES:
                raise
            time.sleep(attempt)


def shortened(text: str) -> str:
    """The text, cut where CloudFormation would refuse it."""
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT - 1]}…"
