"""The design of an accelerator: sizes, bandwidths and energies, read from a TOML file.

Every constant is written as `{ value = …, source = "…" }`, so that a design states the origin of
each number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path

from stepscope.errors import RequestError
from stepscope.files import parse_toml, read_bounded_text

OWN = "simple_weight_stationary"


@dataclass(frozen=True)
class Energy:
    """Picojoules of a word moved at each level, and of a multiply-add."""

    dram: float
    buffer_read: float
    buffer_write: float
    scratchpad: float
    register: float
    mac: float


@dataclass(frozen=True)
class AcceleratorDesign:
    """A weight-stationary accelerator: DRAM, a shared buffer, an array of PEs with scratchpads."""

    name: str
    word_bits: int
    widest_c: int
    widest_m: int
    buffer_words: int
    buffer_reads_per_cycle: float
    buffer_writes_per_cycle: float
    scratchpad_words: int
    energy: Energy


def load_design(named: str = OWN) -> AcceleratorDesign:
    """Read a design by its name, or from a user's file of the same form."""
    try:
        if named == OWN:
            text = resources.files(__package__).joinpath(f"{OWN}.toml").read_text(encoding="utf-8")
        else:
            text = read_bounded_text(Path(named))
        written = parse_toml(text)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"design: wanted {OWN} or a TOML file like it, cannot read {named}: {error}"
        ) from error

    def value(section: str, name: str, least: float = 1) -> float:
        found = written.get(section, {}).get(name)
        number = found.get("value") if isinstance(found, dict) else None
        if not isinstance(number, int | float) or isinstance(number, bool) or not number >= least:
            raise RequestError(
                f"design {named}: wanted [{section}] {name} = {{ value = a number of {least:g} or "
                f'more, source = "…" }}, found {found!r}.'
            )
        return number

    return AcceleratorDesign(
        name=str(written.get("name", Path(named).stem)),
        word_bits=int(written.get("word_bits", 16)),
        widest_c=int(value("array", "widest_c")),
        widest_m=int(value("array", "widest_m")),
        buffer_words=int(value("buffer", "words")),
        buffer_reads_per_cycle=float(value("buffer", "reads_per_cycle")),
        buffer_writes_per_cycle=float(value("buffer", "writes_per_cycle")),
        scratchpad_words=int(value("scratchpad", "words")),
        energy=Energy(
            **{each.name: float(value("energy_pj", each.name, 0)) for each in fields(Energy)}
        ),
    )
