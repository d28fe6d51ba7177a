"""Why torch cannot be imported: it is not there, or it is there and does not load."""

from __future__ import annotations

from stepscope.errors import MachineError, MissingExtraError

# What an import of torch may raise: an OSError where a library that it needs is missing.
FAILURES = (ImportError, OSError)


def cannot_load(needed_for: str, error: ImportError | OSError) -> MachineError:
    """Make the error of a person who has no torch, or has one that does not load."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return MissingExtraError(needed_for, "torch", "train")
    return MachineError(
        f"{needed_for} needs torch, which is installed and does not load: {error}. Install what it "
        "misses, or a torch that is built for this machine."
    )
