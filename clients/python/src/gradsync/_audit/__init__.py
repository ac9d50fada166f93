"""`gradsync audit`: compares the gradient norm of an unchanged training script with the exact one, and explains it.

Ranks only measure and write one file each (`gradsync.torch._audit`), so nothing here can hold training up. `_replay`
hands what they wrote to a daemon, as if the ranks had spoken with it. `_verdict` compares the script's norm with the
daemon's, and with what it would be under each known mistake (`_mistakes`). Nothing in this package imports torch.
"""
