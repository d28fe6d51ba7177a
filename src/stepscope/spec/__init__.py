"""What was asked: frozen, validated settings, from flags, TOML files and earlier runs.

Start at `load.resolve_request`. Nothing here knows of torch, data or this machine.
"""

from stepscope.spec.settings import RunSpec

__all__ = ["RunSpec"]
