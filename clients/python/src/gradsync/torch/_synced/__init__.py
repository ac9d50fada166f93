"""Gradients that the sidecar reduces: what `attach` returns, and how it follows backward."""
