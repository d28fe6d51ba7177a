"""How a result looks: on the terminal now. Knows nothing of how it was measured."""
