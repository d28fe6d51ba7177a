"""What this machine is and what it can tell: CPU, memory, processes, pressure, storage.

Readers, and the control group that holds a process to a memory limit: nothing here knows of
training. A figure that this machine cannot give is None.
"""
