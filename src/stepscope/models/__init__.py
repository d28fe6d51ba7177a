"""The zoo: layers and shapes, one family of networks a file, and the registry of their names.

Start at `registry.build`. Nothing here knows of data, training or measuring.
"""
