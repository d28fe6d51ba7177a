"""The command line: argv in, exit codes out, one file for each command.

Start at `main`, which lists the commands and loads a command's file only when it is called. Flags
that stand for settings are in `settings_flags`. A command parses, calls one function of a lower
package and hands the result to `report`; nothing is measured or decided here.
"""
