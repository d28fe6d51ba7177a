"""The settings of a run: names, defaults and limits.

Start at `run_settings.RunSpec`; `load_settings` reads settings from flags, TOML files and earlier
runs. Nothing here depends on torch, data or this machine.
"""

from stepscope.settings.run_settings import RunSpec

__all__ = ["RunSpec"]
