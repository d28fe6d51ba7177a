"""What users' programs import: `stepscope.Scope`, `stepscope.watch`, `stepscope.load_run`."""
