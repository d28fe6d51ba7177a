"""torch's DataLoader, its worker processes, and what happens when one of them dies.

Start at `dataloader`. `worker_recovery` continues with fewer workers; `batch_notices` carries
notices from a worker to the training.
"""
