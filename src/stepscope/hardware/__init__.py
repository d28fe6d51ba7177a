"""Readings of this machine: CPU, memory, processes, disks, GPU, board, energy sensors.

The modules read /proc, /sys and drivers; `cgroup` also creates the control group of a memory limit.
Nothing here depends on training. A figure that this machine cannot provide is None.
"""
