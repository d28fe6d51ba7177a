"""Time the steps of a training loop: phases, layers, counters and device memory."""
