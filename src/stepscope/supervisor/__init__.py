"""The light parent of a run or a trace: it starts, samples, stops and closes; no torch.

Start at `start_run` for `stepscope run` and at `script_child` for `stepscope trace`; both use
`run_lifecycle`, which closes the folder whatever happens, and `child_supervisor`, which watches
the child. Several processes of one training are in `rank_processes`, or in `torchrun` if the user
started them.
"""
