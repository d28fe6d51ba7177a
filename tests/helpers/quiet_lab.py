"""A listener of labs and sweeps that shows nothing."""

from stepscope.experiments.labs.lab_plan import LabRequest
from stepscope.experiments.labs.lab_runner import run_lab


class QuietListener:
    """Ignores everything but lines of output, which it hands on."""

    def __init__(self, said=lambda line: None):
        self.output = said

    def message(self, message): ...

    def stopping(self): ...

    def trying(self, trial, trials, left_s): ...

    def tried(self, trial): ...


def run_quietly(sheet, flags, **request):
    """Run the lab of a sheet with some flags."""
    return run_lab(sheet, LabRequest(flags, **request), QuietListener())
