"""Charts as Vega-Lite specifications, drawn without a browser.

Start at `chart`, which has the kinds of charts. One file for each kind of record lists its charts,
`vega_lite` draws them, and `report.palette` has their colours.
"""
