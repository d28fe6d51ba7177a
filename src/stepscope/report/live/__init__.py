"""`stepscope serve`: the pages of runs in a browser, updated while they run.

Start at `live_server`; `routes` has the addresses, `live_views` what they show, `access_control`
who may see it.
"""
