"""Pages: one HTML file that needs no network.

Start at `run_page`, `sweep_page` or `search_page` for the content of a page (`page_content`), and
at `html_page` for how it is written. The page that updates itself is in `report.live`.
"""
