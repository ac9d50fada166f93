"""Faults in clips that return before their coefficient is known."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["DEFER"]


def defer(name: str, fault: str, path: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "defer", path, old, new)


_TORCH = "clients/python/src/gradsync/torch"
_GATE = "kernels/library/gate.cpp"

DEFER = (
    defer(
        "defer-failure-trains-on",
        "A step that failed is released with coefficient 1: the optimizer steps with gradients that nobody clipped.",
        f"{_TORCH}/_statistics/_gate.py",
        "return self.release(0.0, True, math.nan)",
        "return self.release(1.0, False, math.nan)",
    ),
    defer(
        "defer-error-dropped",
        "The call after a step that failed does not raise.",
        f"{_TORCH}/_reduced/_deferral.py",
        "        if error is not None:\n            raise DeferredClipFailed",
        "        if error is not None:\n            return None\n            raise DeferredClipFailed",
    ),
    defer(
        "defer-exit-forgets",
        "An interpreter that exits does not wait for its last step, whose failure is said nowhere.",
        f"{_TORCH}/_reduced/_deferral.py",
        "        atexit.register(self._at_exit)\n",
        "",
    ),
    defer(
        "defer-late-coefficient-counts",
        "A coefficient that came after the stream was released is taken for the one that it used.",
        f"{_TORCH}/_statistics/_gate.py",
        "        return not self._calls.gradsync_gate_release(",
        "        return None is not self._calls.gradsync_gate_release(",
    ),
    defer(
        "defer-patience-without-zeros",
        "A stream that nobody releases goes on with gradients that nobody clipped.",
        _GATE,
        "    if (now >= deadline_) {\n      release_locked(0, true,",
        "    if (now >= deadline_) {\n      release_locked(1, false,",
    ),
    defer(
        "defer-second-release-counts",
        "What the stream reads changes under it, after it was released.",
        _GATE,
        "  if (!waiting_) {\n    return false;",
        "  if (step_ == 0) {\n    return false;",
    ),
    defer(
        "defer-nan-times-zero",
        "A failed step multiplies by 0, which leaves its NaN.",
        "kernels/scale.cu",
        "  if (outcome.multiply == kWriteZeros) {",
        "  if (outcome.multiply > kWriteZeros) {",
    ),
    defer(
        "defer-addresses-overwritten",
        "The addresses of the next step take the place of those that the stream has not copied yet.",
        _GATE,
        "if (waiting_ || words_.arrived.load(std::memory_order_acquire) < step_) {",
        "if (waiting_ && words_.arrived.load(std::memory_order_acquire) > step_) {",
    ),
)
