"""Where trials run: this machine or the nodes of a Ray cluster.

`runner` is what a sweep knows of them; `local_runner` and `ray_runner` implement it.
"""
