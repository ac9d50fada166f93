"""`gradsync observe`: the measurements of mode `observe` over a whole run of an unchanged script, and a summary.

Every rank keeps a small tally in a folder of the command (`gradsync.torch._observed` fills it); rank 0 writes a line
per step where one is wanted. Nothing in this package imports torch.
"""
