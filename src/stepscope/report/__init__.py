"""How results look: terminal tables, charts, pages, exports and the live page.

Everything here renders what `analyze` computed. `progress_bar` shows a run in progress, `palette`
has the colours of charts; `terminal`, `html`, `charts`, `export` and `live` are the media.
"""
