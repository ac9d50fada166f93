"""gradsync inside trainers that clip by themselves: `accelerate`, `transformers`, `lightning`, `torchtitan`.

Each module imports its framework, so import the one that you use. Nothing else of this package needs them.
"""
