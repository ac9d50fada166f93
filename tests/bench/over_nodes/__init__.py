"""Benchmarks of a job over several daemons of this machine, which stand for nodes: one at 127.0.0.2, the next at .3."""
