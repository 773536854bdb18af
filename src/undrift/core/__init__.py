"""The engine: records, flat vectors, local training, reduction, the round loop.

Knows nothing of networks, data sets, files or command lines.
"""
