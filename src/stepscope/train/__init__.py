"""Build and run one training.

Start at `training_setup`, which builds model, data and optimiser from settings, and at
`loop.train`, the training loop. `meter` times the steps; `processes` starts the training process.
"""
