"""One commit gives the same bytes in any folder: some sources of the daemon and of the kernels, compiled in two.

Two whole builds would take twenty minutes; what could put a folder's name into an object is the same for all of them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "cpu-release"
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
DEADLINE_S = 300
pytestmark = pytest.mark.timeout(2 * DEADLINE_S)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files of this checkout in a folder whose name has another length."""
    folder = tmp_path_factory.mktemp("another-folder") / "of-gradsync"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name.startswith(("service/", "kernels/", "arithmetic/")) and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return folder


def moved(text: str, copy: Path) -> str:
    return text.replace(str(ROOT), str(copy))


def compiled(command: list[str], folder: Path, output: Path) -> bytes:
    """The object, without the tables of debuggers: those name the folder of the build."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "CCACHE_DISABLE": "1"}
    subprocess.run([*command, "-o", str(output)], cwd=folder, env=env, check=True, timeout=DEADLINE_S)
    subprocess.run(["strip", "--strip-debug", str(output)], check=True)
    return output.read_bytes()


def command_of(source: str) -> tuple[list[str], Path, Path]:
    """The compiler's command for a batch of sources, without its output; the folder that it runs in; the batch."""
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    found = [entry for entry in entries if entry["file"].endswith(source)]
    assert len(found) == 1, f"{source} is in {len(found)} commands"
    words = [word for word in shlex.split(found[0]["command"]) if not word.endswith("ccache")]
    output = words.index("-o")
    return words[:output] + words[output + 2 :], Path(found[0]["directory"]), Path(found[0]["file"])


@pytest.mark.parametrize("layer", ["base", "policy", "plan"])
def test_objects_of_the_daemon_do_not_name_their_folder(layer: str, copy: Path, tmp_path: Path) -> None:
    command, folder, batch = command_of(f"service/{layer}/CMakeFiles/gradsync_{layer}.dir/Unity/unity_0_cxx.cxx")
    here = compiled(command, folder, tmp_path / "here.o")
    there_batch = Path(moved(str(batch), copy))
    there_batch.parent.mkdir(parents=True, exist_ok=True)
    there_batch.write_text(moved(batch.read_text(), copy))
    shutil.copytree(BUILD / "generated", copy / "build" / "cpu-release" / "generated", dirs_exist_ok=True)
    there = compiled([moved(word, copy) for word in command], Path(moved(str(folder), copy)), tmp_path / "there.o")
    assert here == there
    assert str(ROOT).encode() not in here


@pytest.mark.skipif(not Path(NVCC).exists(), reason="nvcc is not installed")
@pytest.mark.parametrize("source", ["decide", "reduce/reduce_powers"])
def test_objects_of_kernels_do_not_name_their_folder(source: str, copy: Path, tmp_path: Path) -> None:
    flags = ["-std=c++20", "-O3", "--fmad=false", "-arch=sm_90", "-Xcompiler=-fPIC"]
    objects = [
        compiled(
            [NVCC, *flags, f"-I{root}", "-c", str(root / "kernels" / f"{source}.cu")], tmp_path, tmp_path / f"{place}.o"
        )
        for place, root in (("here", ROOT), ("there", copy))
    ]
    assert objects[0] == objects[1]
