"""Where trials run: `runner` is the interface and this machine, `ray_runner` a Ray cluster."""
