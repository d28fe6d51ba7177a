"""torch's DataLoader, its worker processes, and what happens when one of them dies.

Start at `dataloader`; `worker_pool` notices workers that die.
"""
