"""Puts the daemon into the wheel: `gradsync/bin/gradsyncd`, stripped, and the command `gradsyncd` that starts it; and
where nvcc is installed the kernels for GPUs, `gradsync/lib/libgradsync_kernels.so`.

The daemon is built by the project's own CMake, two folders up, or taken from $GRADSYNCD_FOR_WHEEL; the kernels, from
$GRADSYNC_KERNELS_FOR_WHEEL. A wheel that is built without the daemon's sources, from an sdist for instance, is a pure
client; so is an editable installation. `make dist` adds the shared libraries that the daemon needs. Every wheel and
sdist has the commit of its sources, for `gradsync --version`: `gradsync/COMMIT`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PRESET = "cpu-release"
_COMMAND = """#!python
from gradsync._launch._spawn import run_daemon_of_this_package

run_daemon_of_this_package()
"""


class DaemonHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling's generic is of no use here
    """Registered in pyproject.toml for wheels and sdists."""

    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root).parents[1]
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="gradsync-wheel-")
        self._add_commit(sources, build_data)
        named = os.environ.get("GRADSYNCD_FOR_WHEEL")
        if self.target_name != "wheel" or not (named or (sources / "service" / "CMakeLists.txt").is_file()):
            return
        built = Path(named) if named else self._build(sources)
        command = Path(self._folder.name) / "command"
        command.write_text(_COMMAND)
        command.chmod(0o755)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["force_include"][str(self._stripped(built))] = "gradsync/bin/gradsyncd"
        kernels = self._kernels(sources, named is not None)
        if kernels is not None:
            build_data["force_include"][str(self._stripped(kernels))] = f"gradsync/lib/{kernels.name}"
        build_data["shared_scripts"][str(command)] = "gradsyncd"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _add_commit(self, sources: Path, build_data: dict[str, Any]) -> None:
        package = Path(self.root) / "src" / "gradsync"
        if (package / "COMMIT").is_file():  # of an sdist, which is packed as it is
            return
        specification = importlib.util.spec_from_file_location("_commit", package / "_commit.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        assert self._folder is not None
        file = Path(self._folder.name) / "COMMIT"
        file.write_text(module.commit_of_checkout(sources) + "\n")
        inside = "gradsync/COMMIT" if self.target_name == "wheel" else "src/gradsync/COMMIT"
        build_data["force_include"][str(file)] = inside

    def _stripped(self, built: Path) -> Path:
        assert self._folder is not None
        stripped = Path(self._folder.name) / built.name
        shutil.copy(built, stripped)
        # The build id is a digest of what debuggers read, too, into which a compiler's cache may put other file names.
        subprocess.run(["strip", "--strip-all", "--remove-section=.note.gnu.build-id", str(stripped)], check=True)
        return stripped

    def _kernels(self, sources: Path, daemon_is_given: bool) -> Path | None:
        """The library of kernels; None where it cannot be built here, and in a wheel of a daemon that was given."""
        if named := os.environ.get("GRADSYNC_KERNELS_FOR_WHEEL"):
            return Path(named)
        if daemon_is_given:
            return None
        if shutil.which("nvcc") is None and not os.access("/usr/local/cuda/bin/nvcc", os.X_OK):
            self.app.display_warning("nvcc not found: the wheel has no kernels for GPUs, where torch will measure")
            return None
        self.app.display_info("building the kernels for GPUs; that takes minutes the first time")
        subprocess.run(["scripts/build.sh", "cuda-release", "gradsync_kernels_library"], cwd=sources, check=True)
        return sources / "build" / "cuda-release" / "lib" / "libgradsync_kernels.so"

    def _build(self, sources: Path) -> Path:
        self.app.display_info("building gradsyncd; that takes minutes the first time")
        subprocess.run(["scripts/build.sh", _PRESET, "gradsyncd"], cwd=sources, check=True)
        return sources / "build" / _PRESET / "bin" / "gradsyncd"
