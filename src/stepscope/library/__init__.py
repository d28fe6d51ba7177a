"""The door for people's own programs: `stepscope.load_run`, `Scope` and `watch`."""
