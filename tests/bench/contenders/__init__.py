"""The contenders: each module has a `Contender` with `fill()`, `step()`, `result()` and `close()`.

`step` alone is timed; `fill` prepares it, and `result` says what came out, so that a wrong one is noticed.
"""
