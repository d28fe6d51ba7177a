"""`python -m stepscope` is `stepscope`."""

from stepscope.cli.main import main

main()
