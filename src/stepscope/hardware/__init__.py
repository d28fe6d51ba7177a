"""What this machine is and what it can tell: CPU, memory, processes, pressure, storage.

Readers only: nothing here knows of training. A figure that this machine cannot give is None.
"""
