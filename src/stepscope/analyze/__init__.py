"""What the numbers mean: one module a question. Reads records, prints nothing, needs no torch."""
