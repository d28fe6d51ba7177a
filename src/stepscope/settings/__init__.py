"""The settings of a run: names, defaults and limits."""

from stepscope.settings.run_settings import RunSpec

__all__ = ["RunSpec"]
