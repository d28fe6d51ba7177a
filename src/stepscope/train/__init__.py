"""One training: the loop, what it needs built, how it is checkpointed and recorded.

`loop.train` reads top to bottom on one screen. `child` is the process that it runs in. Nothing
here knows how a result looks.
"""
