"""Gradients that lie on a GPU, in memory of this process that the daemon's worker maps."""
