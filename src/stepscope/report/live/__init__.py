"""`stepscope serve`: the pages of runs in a browser, updated while they run.

Start at `live_server`. `routes` has the URLs, `live_views` their content, and `access_control` the
rules of access.
"""
