"""Every process of an audited or observed command finds this first on PYTHONPATH: it prepares the hooks, then runs the
`sitecustomize` that would have run without it."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _without_this_folder() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        other = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = other
        spec.loader.exec_module(other)


def _prepare() -> None:
    if not os.environ.get("GRADSYNC_INJECTED"):
        return
    try:
        # Loaded by its path, because `import gradsync` would cost every process of the command what only ranks need.
        hooks = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_hooks.py")
        spec = importlib.util.spec_from_file_location("gradsync._injected._hooks", hooks)
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules["gradsync._injected._hooks"] = module
        spec.loader.exec_module(module)
        module.install()
    except Exception as error:
        sys.stderr.write(f"gradsync: this process is not audited or observed: {error!r}\n")


_prepare()
_without_this_folder()
