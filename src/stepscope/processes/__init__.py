"""Whatever is started with `python -m`: the child side of `supervisor`.

Start at `training_process`, which runs one training and tells its parent how it went; the training
itself is put together in `training_session`. `answer` is for processes that are asked one thing.
"""
