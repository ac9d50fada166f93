"""Wraps torch's clip functions for a recorder, without a change to the script. It never imports torch, so that
processes that do not use torch need not load it."""

from __future__ import annotations

import functools
import importlib
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

VARIABLE = "GRADSYNC_INJECTED"  #: JSON: `tool` ("audit" or "observe"), `folder`, and what the tool's recorder reads
_MODULE = "torch.nn.utils.clip_grad"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
_KINDS = {
    "clip_grad_norm_": "clip",
    "_get_total_norm": "total",
    "get_total_norm": "total",
    "_clip_grads_with_norm_": "apply",
    "clip_grads_with_norm_": "apply",
}
#: What frameworks clip by, by the module that defines it: functions like torch's, and the step of an optimizer that
#: computes the norm, clips and steps.
_FRAMEWORKS = {
    "deepspeed.runtime.utils": {"clip_grad_norm_": "clip"},
    "deepspeed.runtime.zero.stage_1_and_2": {"DeepSpeedZeroOptimizer.step": "step"},
    "deepspeed.runtime.zero.stage3": {"DeepSpeedZeroOptimizer_Stage3.step": "step"},
    "deepspeed.runtime.bf16_optimizer": {"BF16_Optimizer.step": "step"},
    "deepspeed.runtime.fp16.fused_optimizer": {"FP16_Optimizer.step": "step"},
    "megatron.core.optimizer.clip_grads": {
        "clip_grad_by_total_norm_fp32": "apply",
        "get_grad_norm_fp32": "filtered",  # "total", of gradients that exclude copies
    },
    "deepspeed.runtime.fp16.unfused_optimizer": {"FP16_UnfusedOptimizer.step": "step"},
}
_MODULES = (_MODULE, _FSDP1, *_FRAMEWORKS)
_RECORDERS = {"audit": "gradsync.torch._audit._recorder", "observe": "gradsync.torch._observed._watcher"}
Recorder = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_inside = threading.local()
_recorder: Recorder | None = None
_ended = False


def options(tool: str | None = None, environ: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """The options that the environment gives; None without a tool, or where it is another one."""
    text = (os.environ if environ is None else environ).get(VARIABLE)
    found = None if not text else dict(json.loads(text))
    return None if found is None or tool not in (None, found["tool"]) else found


def install() -> None:
    """Called at the start of a process; wraps the functions when torch is imported."""
    for name in _MODULES:
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
        sys.stderr.write(f"gradsync: where this process failed is not kept: {unkept!r}\n")


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
    modules = [sys.modules[name] for name in _MODULES if name in sys.modules]
    before = [
        (module, name, vars(module)[name]) for module in modules for name in _names(module) if name in vars(module)
    ]
    for module in modules:
        _wrap(module)
    # `before` keeps the plain functions alive, so that their ids are not used again.
    new = {id(plain): vars(module)[name] for module, name, plain in before if vars(module)[name] is not plain}
    for other in list(sys.modules.values()):
        held: dict[str, Any] = getattr(other, "__dict__", {})
        for name, value in list(held.items()):
            if id(value) in new and other not in modules and not name.startswith("__"):
                held[name] = new[id(value)]


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
        if fullname not in _MODULES:
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
    for name, kind in _names(module).items():
        owner, _, method = name.rpartition(".")
        holder: Any = vars(module).get(owner) if owner else module
        original = None if holder is None else vars(holder).get(method)
        if original is not None and not hasattr(original, "_gradsync_wraps"):
            setattr(holder, method, _wrapped(kind, original))


def _names(module: ModuleType) -> Mapping[str, str]:
    """What is wrapped of a module, and how; a method with the name of its class."""
    return _FRAMEWORKS.get(module.__name__, {} if module.__name__ == _FSDP1 else _KINDS)


def _wrap_method(wrapper: type[Any]) -> None:
    """Wraps `model.clip_grad_norm_(max_norm)`, which clips the model's parameters."""
    original = wrapper.clip_grad_norm_
    if hasattr(original, "_gradsync_wraps"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _ended:
            return original(self, *args, **kwargs)
        wrapped = _wrapped("clip", lambda parameters, *args, **kwargs: original(self, *args, **kwargs))
        return wrapped(list(self.parameters()), *args, **kwargs)

    clip_grad_norm_._gradsync_wraps = original  # type: ignore[attr-defined]
    wrapper.clip_grad_norm_ = clip_grad_norm_


def _wrapped(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
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

    wrapped._gradsync_wraps = original  # type: ignore[attr-defined]
    return wrapped


def _first() -> Recorder | None:
    """The recorder that the environment asks for; it is made at the first call, when torch is imported completely."""
    try:
        found = options()
        if found is None:
            return None
        made: Recorder | None = importlib.import_module(_RECORDERS[found["tool"]]).from_environment()
        return made
    except Exception as error:
        end()
        _complain(f"{type(error).__name__}: {error}")
        return None


def _complain(reason: str) -> None:
    """Writes the reason where the tool will look, although the rank may not be known and gradsync not installed."""
    try:
        found = options()
        if found is not None:
            rank, world_size = os.environ.get("RANK", "0"), int(os.environ.get("WORLD_SIZE", "1"))
            failed = {"failed": f"{reason} ({sys.executable})", "world_size": world_size}
            with (Path(found["folder"]) / f"rank-{rank}.jsonl").open("x", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in (failed, {"done": True})))
    except (OSError, ValueError):
        return
