"""The zoo, one file for each family of networks, and the cost of a network.

Start at `registry`, which lists the networks by name. `model_summary` counts layers, parameters
and multiply-adds, `step_tensors` the tensors of a training step.
"""
