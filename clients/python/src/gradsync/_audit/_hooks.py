"""Wraps torch's clip functions for the audit, without a change to the script. It never imports torch, so that processes
that do not use torch need not load it."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

__all__ = ["VARIABLE", "Recorder", "end", "ended", "install", "options", "start", "wrap_now"]

VARIABLE = "GRADSYNC_AUDIT"  #: JSON: `folder`, `steps`, and what the caller said about meshes
_MODULE = "torch.nn.utils.clip_grad"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_KINDS = {
    "clip_grad_norm_": "clip",
    "_get_total_norm": "total",
    "get_total_norm": "total",
    "_clip_grads_with_norm_": "apply",
    "clip_grads_with_norm_": "apply",
}
Recorder = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_inside = threading.local()
_recorder: Recorder | None = None
_ended = False


def options(environ: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """The options that the environment gives; None if there is no audit."""
    text = (os.environ if environ is None else environ).get(VARIABLE)
    return None if not text else dict(json.loads(text))


def install() -> None:
    """Called at the start of a process; wraps the functions when torch is imported."""
    for name in (_MODULE, _FSDP1):
        if name in sys.modules:
            _wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
    _tell_of_exceptions()


def _tell_of_exceptions() -> None:
    """Keeps where a process of the command failed, then does what would have been done."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _keep_exception(kind, error, trace)
        before(kind, error, trace)

    sys.excepthook = told


def _keep_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    try:
        found = options()
        if found is None or issubclass(kind, KeyboardInterrupt):
            return
        rank = os.environ.get("RANK")
        told = {
            "rank": rank,
            "error": f"{kind.__name__}: {error}".splitlines()[0][:300],
            "place": _place_of(trace),
            "time": time.time(),
        }
        path = Path(found["folder"]) / f"raised-{rank}-{os.getpid()}.json"
        path.write_text(json.dumps(told), encoding="utf-8")
    except Exception as unkept:
        sys.stderr.write(f"gradsync audit: where this process failed is not kept: {unkept!r}\n")


def _place_of(trace: TracebackType | None) -> str:
    """The innermost line that is not of an installed package."""
    frames = traceback.extract_tb(trace)
    own = [one for one in frames if not re.search(r"(site|dist)-packages|/lib/python3|^<frozen", one.filename)]
    if not frames:
        return "an unknown line"
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}"


def wrap_now() -> None:
    """Called after torch was imported; it also wraps functions that other modules have imported already."""
    if _FSDP1 in sys.modules:
        _wrap(sys.modules[_FSDP1])
    module = sys.modules[_MODULE]
    old = {id(vars(module)[name]): name for name in _KINDS if name in vars(module)}
    keep = [vars(module)[name] for name in old.values()]  # while they live, their ids are not used again
    _wrap(module)
    new = {key: vars(module)[name] for key, name in old.items()}
    for other in list(sys.modules.values()):
        held: dict[str, Any] = getattr(other, "__dict__", {})
        for name, value in list(held.items()):
            if id(value) in new and other is not module and not name.startswith("__"):
                held[name] = new[id(value)]
    del keep


def start(recorder: Recorder) -> None:
    """Calls go to `recorder` from now on."""
    global _recorder, _ended
    _recorder, _ended = recorder, False


def end() -> None:
    """From now on the wrapped functions only make one comparison and call the plain ones."""
    global _recorder, _ended
    _recorder, _ended = None, True


def ended() -> bool:
    return _ended


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in (_MODULE, _FSDP1):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def run_and_wrap(module: ModuleType, run: Callable[[ModuleType], None] = run) -> None:
                    run(module)
                    _wrap(module)

                spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
                return spec
        return None


def _wrap(module: ModuleType) -> None:
    if module.__name__ == _FSDP1:
        wrapper = vars(module).get("FullyShardedDataParallel")
        if wrapper is not None:
            _wrap_method(wrapper)
        return
    for name, kind in _KINDS.items():
        original = vars(module).get(name)
        if original is not None and not hasattr(original, "_gradsync_audits"):
            setattr(module, name, _wrapped(kind, original))


def _wrap_method(wrapper: type[Any]) -> None:
    """Wraps `model.clip_grad_norm_(max_norm)`, which clips the model's parameters."""
    original = wrapper.clip_grad_norm_
    if hasattr(original, "_gradsync_audits"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _ended:
            return original(self, *args, **kwargs)
        audited = _wrapped("clip", lambda parameters, *args, **kwargs: original(self, *args, **kwargs))
        return audited(list(self.parameters()), *args, **kwargs)

    clip_grad_norm_._gradsync_audits = original  # type: ignore[attr-defined]
    wrapper.clip_grad_norm_ = clip_grad_norm_


def _wrapped(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def audited(*args: Any, **kwargs: Any) -> Any:
        if _ended or getattr(_inside, "flag", False) or sys.modules["torch"].compiler.is_compiling():
            return original(*args, **kwargs)
        recorder = _recorder or _first()
        if recorder is None:
            return original(*args, **kwargs)
        _inside.flag = True
        try:
            return recorder(kind, original, args, kwargs)
        finally:
            _inside.flag = False

    audited._gradsync_audits = original  # type: ignore[attr-defined]
    return audited


def _first() -> Recorder | None:
    """The recorder that the environment asks for; it is made at the first call, when torch is imported completely."""
    try:
        from gradsync.torch._audit import _recorder

        return _recorder.from_environment()
    except Exception as error:
        end()
        _complain(f"{type(error).__name__}: {error}")
        return None


def _complain(reason: str) -> None:
    """Writes the reason where the audit will look, although the rank may not be known and gradsync not installed."""
    try:
        found = options()
        if found is not None:
            rank, world_size = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
            failed = {"failed": f"{reason} ({sys.executable})", "world_size": world_size}
            with (Path(found["folder"]) / f"rank-{rank}.jsonl").open("x", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in (failed, {"done": True})))
    except (OSError, ValueError):
        return
