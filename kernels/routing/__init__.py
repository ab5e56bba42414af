"""Moving rows to where their experts are, on the device: sort, gather, pack, sum, and the lookup of destinations.

Each operation has a Triton kernel and a torch twin of the same signature in the same module. No call waits for the
device or reads a value from it.
"""
