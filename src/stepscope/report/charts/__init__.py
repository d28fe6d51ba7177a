"""Charts as Vega-Lite specifications, drawn without a browser.

Start at `chart`, which has the kinds of charts; one file for each kind of record lists the charts
of that record, `vega_lite` draws them.
"""
