"""How results look: terminal tables, charts, pages, exports and the live page.

Everything here renders what `analyze` computed; no number is computed anew. `progress_bar` shows a
run under way; `terminal`, `html`, `charts`, `export` and `live` are the media.
"""
