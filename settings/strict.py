"""What every group of settings has in common."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Refuses keys that it does not know; a docstring under a field is its meaning."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
