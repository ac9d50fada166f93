"""`gradsync report`: a picture of a run that was logged: norms, thresholds, clips, findings, and what other policies
would have done. Nothing in this package imports torch.
"""
