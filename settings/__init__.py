"""The user's choices: one YAML file, checked when it is read."""

from settings.loading import SettingsError, load_settings
from settings.model import Settings

__all__ = ["Settings", "SettingsError", "load_settings"]
