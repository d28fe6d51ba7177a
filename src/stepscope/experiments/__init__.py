"""Many runs, one answer.

Start at `sweep_run` for a grid of settings; `worker_trials`, `max_batch_trials`,
`bottleneck_trials` and `scale_trials` answer one question each. A `workload` is what is tried: a
training of ours or a user's script. Where trials run is in `runners`, experiments by name in
`labs`.
"""
