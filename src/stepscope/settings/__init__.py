"""What was asked for: names, defaults and limits of every setting.

Start at `run_settings.RunSpec`; `load_settings` reads them from flags, TOML files and earlier
runs. Nothing here knows of torch, data or this machine.
"""

from stepscope.settings.run_settings import RunSpec

__all__ = ["RunSpec"]
