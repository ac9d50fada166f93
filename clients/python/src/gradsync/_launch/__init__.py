"""How a process begins: which rank of which job it is, and where its daemon listens, or how to start a private one.

Nothing in this package knows the protocol, and nothing imports torch.
"""
