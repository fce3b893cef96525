"""What CloudWatch is told of the cluster and its runs."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from settings.strict import Strict


class ObservabilitySettings(Strict):
    """Metrics, container logs, a dashboard and alarms in CloudWatch."""

    enabled: bool = False
    """Install the agents of CloudWatch, which send metrics of nodes, GPUs, EFA and runs, and the logs of all
    containers; and make a dashboard and alarms. Roughly $25 a month while the stacks stand (docs/operations.md)."""
    alarm_minutes: int = Field(default=15, ge=5, le=720)
    """Minutes without a step, or with idle GPUs while a job trains, after which an alarm goes off."""
    alarm_email: str | None = None
    """Address that alarms are mailed to, once its owner has confirmed it; none: the console shows them."""

    @field_validator("alarm_email")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[^@\s]{1,64}@[^@\s]+\.[^@\s.]+", value):
            raise ValueError(f"{value} is not an e-mail address; it looks like team@example.com")
        return value

    @model_validator(mode="after")
    def _alarms_are_there(self) -> ObservabilitySettings:
        if self.alarm_email is not None and not self.enabled:
            raise ValueError("alarm_email is set, and there are no alarms without observability.enabled: true; set "
                             "that, or leave alarm_email out")
        return self
