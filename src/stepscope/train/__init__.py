"""Build and run one training: `training_setup` builds it, `loop.train` runs it."""
