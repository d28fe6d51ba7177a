"""`stepscope serve`: the pages of runs in a browser, updated while they run."""
