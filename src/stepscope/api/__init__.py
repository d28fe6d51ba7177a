"""What users' programs import: `stepscope.Scope`, `stepscope.watch`, `stepscope.load_run`.

`scope` times a loop with laps that the user sets, `watch` installs the hooks of `stepscope trace`,
`notebook` shows a run in Jupyter. The command line is in `cli`.
"""
