"""The colours of charts."""

from __future__ import annotations

from collections.abc import Iterable

# The colours of Okabe and Ito, which remain distinct under every kind of colour blindness. Yellow
# is left out because it is hardly visible on white.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999999")

# A phase has the same colour in every chart. `loading` is the epoch's name for `data`.
PHASE_COLOURS = {
    "data": "#E69F00",
    "loading": "#E69F00",
    "transfer": "#56B4E9",
    "forward": "#0072B2",
    "training": "#0072B2",
    "backward": "#D55E00",
    "optimizer": "#009E73",
    "other": "#999999",
    "idle": "#CC79A7",
    "step": "#222222",
    "roof": "#222222",
}

INK = "#222222"
INKS = (INK, "#000000")  # replaced by the text colour of an HTML page, which may be dark
CHOSEN = "#D55E00"  # the recommended setting, and limits
SHADE = "#CC79A7"  # throttled steps


def colours_of(series: Iterable[str]) -> dict[str, str]:
    """Return the colour of each series: phases have fixed colours, others take the palette's."""
    names = list(series)
    if all(name in PHASE_COLOURS for name in names):
        return {name: PHASE_COLOURS[name] for name in names}
    return {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(names)}
