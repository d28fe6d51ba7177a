"""Sample a run from outside its process: memory, CPU, energy and throttling."""
