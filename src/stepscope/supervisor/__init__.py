"""The light parent of a run or a trace: it starts, samples, stops and closes; no torch.

Start at `start_run` for `stepscope run` and at `script_child` for `stepscope trace`.
"""
