"""Building and running one training of our own.

Start at `training_setup`, which builds model, data and optimiser from settings, and at
`loop.train`, the training loop. What is timed is in `meter`, how the process is started in
`processes`.
"""
