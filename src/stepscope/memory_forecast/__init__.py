"""What a run will take of memory, before it runs.

Start at `fit_check.check_fit`: a few small steps in the training process (`forecast`) give the
`memory_bill`, item by item. `remedies` lists what would lower it. What a run really took is
measured by `telemetry` and explained by `analyze.memory_use`.
"""
