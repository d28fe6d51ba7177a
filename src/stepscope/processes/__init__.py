"""Modules that run with `python -m`: the child side of `supervisor`.

Start at `training_process`, which runs one training and reports its outcome to the parent.
`training_session` builds and runs that training. `answer` is for processes that answer one request.
"""
