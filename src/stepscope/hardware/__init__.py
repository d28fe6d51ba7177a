"""What this machine is and says now: CPU, memory, processes, disks, GPU, board, energy sensors.

Readers of /proc, /sys and drivers, and the control group that holds a memory limit. Nothing here
knows of training. A figure that this machine cannot give is None.
"""
