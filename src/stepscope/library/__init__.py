"""The door for people's own programs: `stepscope.Scope` and `stepscope.watch`."""
