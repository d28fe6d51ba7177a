"""Tables and charts as text, one file for each command's output."""
