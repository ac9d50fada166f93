"""What gradsync must answer about gradients that the framework reduced, worked out over whole logical gradients.

Independent of the product: shards come from torch.chunk, sums from decimals of 60 digits, groups from coordinates.
"""
