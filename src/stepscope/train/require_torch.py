"""The error for a torch that is not installed, or is installed and does not load."""

from __future__ import annotations

from stepscope.errors import MachineError, MissingExtraError

# `import torch` raises an OSError if a shared library is missing.
FAILURES = (ImportError, OSError)


def cannot_load(needed_for: str, error: ImportError | OSError) -> MachineError:
    """Return the error to raise when `import torch` fails."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return MissingExtraError(needed_for, "torch", "train")
    return MachineError(
        f"{needed_for} needs torch, which is installed and does not load: {error}. Install what it "
        "misses, or a torch that is built for this machine."
    )
