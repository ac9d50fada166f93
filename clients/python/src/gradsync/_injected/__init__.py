"""What `gradsync audit` and `gradsync observe` share: a command whose processes wrap torch's clip functions.

`_command` runs it, with `startup/sitecustomize.py` first on PYTHONPATH; that loads `_hooks` in every process, which
hands each clip call to the recorder of the tool that the environment names. Nothing here imports torch.
"""
