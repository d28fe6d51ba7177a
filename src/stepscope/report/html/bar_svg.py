"""Bars of parts as SVG: drawn without a script, and without the styles that the policy refuses."""

from __future__ import annotations

from html import escape

from stepscope.report.html.page_content import Bar, BarPart, Tile

_WIDE, _PHONE = 880, 300  # pixels of a bar on a screen and on a phone
_LETTER, _BESIDE = 7.6, 18  # pixels that a name needs


def draw_bar(bar: Bar) -> str:
    """Return a bar with its captions, and its legend if it has one."""
    ends = f"<span>{escape(bar.title)}</span><span>{escape(bar.value)}</span>"
    captions = f'<p class="captions">{ends}</p>\n'
    legend = ""
    if bar.legend:
        items = "".join(
            f'<li><svg class="swatch" aria-hidden="true"><rect class="{_colour(part)}" '
            'width="100%" height="100%"/></svg>'
            f"{escape(part.name)} <small>{escape(part.value)}</small></li>\n"
            for part in bar.legend
        )
        legend = f'<ul class="legend">\n{items}</ul>\n'
    drawn, at = "", 0.0
    for part in bar.parts:
        width = part.share * bar.length
        drawn += _part(part, at, width, named=not bar.thin and _fits(part, width, _WIDE))
        at += width
    words = "; ".join(_words(part) for part in bar.legend or bar.parts)
    thin = " thin" if bar.thin else ""
    label = escape(f"{bar.title}: {words}" if words else bar.title)
    svg = f'<svg class="bar-of-parts{thin}" role="img" aria-label="{label}">{drawn}</svg>\n'
    return f"{captions}{svg}{legend}"


def _part(part: BarPart, at: float, width: float, *, named: bool) -> str:
    text = ""
    if named:
        only_wide = "" if _fits(part, width, _PHONE) else ' class="only-wide"'
        text = (
            f'<g{only_wide}><text x="9" y="19" class="{_colour(part)}">{escape(part.name)}</text>'
            f'<text x="9" y="36" class="small {_colour(part)}">{escape(part.value)}</text></g>'
        )
    return (
        f'<svg x="{at:.3%}" width="{width:.3%}" height="100%"><title>{escape(_words(part))}</title>'
        f'<rect class="{_colour(part)}" width="100%" height="100%"/>{text}</svg>'
    )


def _fits(part: BarPart, width: float, pixels: int) -> bool:
    longest = max(len(part.name), len(part.value))
    return width * pixels >= longest * _LETTER + _BESIDE


def _words(part: BarPart) -> str:
    return f"{part.name}, {part.value}" if part.value else part.name


def _colour(part: BarPart) -> str:
    return escape(f"of-{part.colour.replace(' ', '-')}")  # recorded names among them


def draw_tile(tile: Tile) -> str:
    """Return a figure with its meter."""
    meter = ""
    if tile.share is not None:
        filled = min(max(tile.share, 0.0), 1.0)
        meter = (
            '<svg class="meter" aria-hidden="true"><rect class="of-empty" width="100%" '
            f'height="100%"/><rect class="of-{tile.colour}" width="{filled:.2%}" height="100%"/>'
            "</svg>\n"
        )
    note = f"<small>{escape(tile.note)}</small>\n" if tile.note else ""
    return (
        f"<li><small>{escape(tile.title)}</small>\n<p><b>{escape(tile.value)}</b> "
        f"{escape(tile.unit)}</p>\n{meter}{note}</li>\n"
    )
