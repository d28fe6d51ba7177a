"""The script that draws charts in a browser: made once out of vl-convert, kept for later pages.

To make it takes seconds, to read it a millisecond, and every run ends with a page.
"""

from __future__ import annotations

import tempfile
from importlib import metadata
from pathlib import Path

from stepscope.errors import MissingExtraError
from stepscope.user_folders import cache_folder

_SNIPPET = "window.vegaEmbed = vegaEmbed;"


def vega_script() -> str:
    """Return Vega, Vega-Lite and vegaEmbed as one script, which sets `window.vegaEmbed`.

    Raises:
        MissingExtraError: vl-convert is not installed, and no earlier page left the script behind.
    """
    cache = cache_folder()
    folder = None if cache is None else cache / "vega"
    try:
        version = metadata.version("vl-convert-python")
    except metadata.PackageNotFoundError:
        kept = [] if folder is None else sorted(folder.glob("*.js"))
        if not kept:
            raise MissingExtraError("drawing a page", "vl-convert", "report") from None
        return kept[-1].read_text(encoding="utf-8")
    if folder is None:
        return _make()
    kept_as = folder / f"{version}.js"
    try:
        return kept_as.read_text(encoding="utf-8")
    except OSError:
        script = _make()
    _keep(kept_as, script)
    return script


def _make() -> str:
    import vl_convert

    newest = vl_convert.get_vegalite_versions()[-1]  # made for the Vega that is beside it
    script = str(vl_convert.javascript_bundle(_SNIPPET, vl_version=newest))
    # Within a page the script must not seem to end before its end.
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _keep(kept_as: Path, script: str) -> None:
    """Write it in one move; where there is no room for it, do without."""
    beside = None
    try:
        kept_as.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", newline="\n", dir=kept_as.parent, suffix=".tmp", delete=False
        ) as file:
            beside = Path(file.name)
            file.write(script)
        beside.replace(kept_as)
    except OSError:  # a home that cannot be written to: the next page makes it again
        if beside is not None:
            beside.unlink(missing_ok=True)
