"""Plain statistics, with the standard library only.

`intervals` has medians and quantiles, `decide` everything that is called faster, slower, tied or
chosen: start there. The run is the unit: values are one per run, never one per step.
"""
