"""Charts as Vega-Lite specifications, drawn without a browser."""
