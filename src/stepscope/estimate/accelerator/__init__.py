"""Energy, cycles and peak activation of a network on an accelerator, without running anything.

design    what the accelerator is made of: a data file, with the source of each constant
layer     a convolution or a linear layer, as bounds of a loop nest
loops     how often a tile is fetched again, given the loops above it
tensors   what weights, inputs and outputs cost in a mapping
mapper    the best mapping of a layer, by exhaustive search with pruning that cannot lose it
network   all layers of a network, and its peak activation
"""
