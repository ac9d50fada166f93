"""The contenders: each module has a `Contender` with `fill()`, `step() -> norm`, `views` and `close()`."""
