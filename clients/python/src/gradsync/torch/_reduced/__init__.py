"""Gradients that a framework has reduced: what `init` returns, and torch's functions over all ranks."""
