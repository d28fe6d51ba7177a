"""How results look: terminal tables, charts, pages, exports and the live page."""
