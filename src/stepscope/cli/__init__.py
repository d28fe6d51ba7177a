"""The command line: argv in, messages and exit codes out. One file a command."""
