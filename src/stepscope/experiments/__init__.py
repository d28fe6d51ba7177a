"""Which runs, in what order, each in its own process, resumed how.

Start at `single.start` and `single.resume`: one run, supervised by a light parent.
"""
