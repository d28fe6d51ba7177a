"""Modules that run with `python -m`: the child side of `supervisor`.

Start at `training_process`. `answer` is for processes that answer one request.
"""
