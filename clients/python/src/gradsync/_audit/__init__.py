"""`gradsync audit`: a training script as it is, its own gradient norm beside the exact one, and why they differ.

Ranks only measure and write (`gradsync.torch._audit`, one file each): nothing here can hold training up. What all of
them wrote is handed to a daemon as if they had spoken with it (`_replay`), and compared (`_verdict`) with what the norm
would be under each named mistake (`_mistakes`). Nothing in this package imports torch.
"""
