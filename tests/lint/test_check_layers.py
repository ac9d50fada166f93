"""check_layers on small trees."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("check_layers.py")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_layers", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


check_layers = _load()


def findings(root: Path, files: dict[str, str]) -> list[str]:
    (root / "service").mkdir()
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [str(finding) for finding in check_layers.check_tree(root)]


def test_headers_that_include_each_other(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        {
            "service/engine/a.hpp": '#include "base/error.hpp"\n#include "engine/b.hpp"\n',
            "service/engine/b.hpp": '#include "base/error.hpp"\n#include "engine/c.hpp"\n',
            "service/engine/c.hpp": '#include "engine/a.hpp"\n',
            "service/engine/a.cpp": '#include "engine/a.hpp"\n',
            "service/engine/other.hpp": '// #include "engine/other.hpp"\n#include "engine/a.hpp"\n',
            "service/base/error.hpp": "",
        },
    )
    assert [text.split(" (")[0] for text in found] == [
        "service/engine/a.hpp:2: includes itself: engine/a.hpp → engine/b.hpp → engine/c.hpp → engine/a.hpp",
        "service/engine/b.hpp:2: includes itself: engine/b.hpp → engine/c.hpp → engine/a.hpp → engine/b.hpp",
        "service/engine/c.hpp:1: includes itself: engine/c.hpp → engine/a.hpp → engine/b.hpp → engine/c.hpp",
    ]


@pytest.mark.parametrize(
    ("layer", "target"),
    [
        ("plan", "base/error.hpp"),
        ("plan", "arithmetic/clip.hpp"),
        ("device", "arithmetic/half.hpp"),
        ("policy", "plan/clip/clip_rule.hpp"),
        ("device", "plan/plan.hpp"),
        ("device", "kernels/kernels.hpp"),
        ("collective", "base/clock.hpp"),
        ("engine", "device/lane.hpp"),
        ("engine", "policy/policy.hpp"),
        ("rpc", "engine/engine.hpp"),
        ("net", "base/log.hpp"),
        ("app", "rpc/dispatcher.hpp"),
        ("app", "net/server.hpp"),
        ("engine", "engine/report/report.hpp"),
    ],
)
def test_arrows_that_point_down_pass(tmp_path: Path, layer: str, target: str) -> None:
    assert findings(tmp_path, {f"service/{layer}/thing.cpp": f'#include "{target}"\n'}) == []


@pytest.mark.parametrize(
    ("layer", "target"),
    [
        ("base", "plan/plan.hpp"),
        ("base", "arithmetic/half.hpp"),
        ("engine", "arithmetic/clip.hpp"),
        ("plan", "policy/policy.hpp"),
        ("plan", "device/lane.hpp"),
        ("policy", "engine/engine.hpp"),
        ("device", "collective/ring.hpp"),
        ("device", "engine/engine.hpp"),
        ("engine", "rpc/dispatcher.hpp"),
        ("engine", "net/server.hpp"),
        ("rpc", "net/server.hpp"),
        ("rpc", "app/config/options.hpp"),
        ("net", "engine/engine.hpp"),
        ("net", "plan/plan.hpp"),
        ("net", "rpc/dispatcher.hpp"),
    ],
)
def test_other_arrows_are_found_with_file_and_line(tmp_path: Path, layer: str, target: str) -> None:
    text = f'#pragma once\n\n#include "{layer}/own.hpp"\n#  include  "{target}"\n'
    found = findings(tmp_path, {f"service/{layer}/thing.hpp": text})
    assert len(found) == 1
    assert found[0].startswith(f'service/{layer}/thing.hpp:4: {layer} includes "{target}"')


def test_sub_folders_belong_to_their_layer(tmp_path: Path) -> None:
    found = findings(tmp_path, {"service/net/http/page.cpp": '#include "rpc/dispatcher.hpp"\n'})
    assert [line.split(" ")[0] for line in found] == ["service/net/http/page.cpp:1:"]


def test_includes_start_at_the_source_root(tmp_path: Path) -> None:
    found = findings(tmp_path, {"service/rpc/a.cpp": '#include "../engine/engine.hpp"\n#include "b.hpp"\n'})
    assert len(found) == 2
    assert "climbs" in found[0]
    assert '(write "rpc/b.hpp")' in found[1]


def test_headers_of_others_are_in_angle_brackets(tmp_path: Path) -> None:
    assert "go in <>" in findings(tmp_path, {"service/device/a.cpp": '#include "hwy/highway.h"\n'})[0]


@pytest.mark.parametrize("target", ["boost/beast.hpp", "boost/beast/core.hpp", "cuda.h", "cuda_runtime.h", "nccl.h"])
def test_heavy_headers_stay_out_of_headers(tmp_path: Path, target: str) -> None:
    text = f"#include <{target}>\n"
    found = findings(tmp_path, {"service/net/a.hpp": text, "service/net/a.cpp": text})
    assert [line.split(" ")[0] for line in found] == ["service/net/a.hpp:1:"]


def test_json_is_known_to_rpc_and_app_only(tmp_path: Path) -> None:
    text = "#include <nlohmann/json.hpp>\n"
    layers = ["base", "plan", "policy", "device", "engine", "net", "rpc", "app"]
    found = findings(tmp_path, {f"service/{layer}/a.cpp": text for layer in layers})
    assert len(found) == 6
    assert not any("service/rpc" in line or "service/app" in line for line in found)


def test_comments_include_nothing(tmp_path: Path) -> None:
    text = '// #include "net/server.hpp"\n/*\n#include "net/server.hpp"\n*/\n#include "net/real.hpp"\n'
    found = findings(tmp_path, {"service/engine/a.cpp": text})
    assert [line.split(" ")[0] for line in found] == ["service/engine/a.cpp:5:"]


def test_a_folder_that_is_no_layer_is_found(tmp_path: Path) -> None:
    assert "'glue' is not a layer" in findings(tmp_path, {"service/glue/a.cpp": ""})[0]


def test_names_that_say_nothing_are_found(tmp_path: Path) -> None:
    found = findings(tmp_path, {"service/net/socket_utils.cpp": "", "service/net/commonplace.cpp": ""})
    assert len(found) == 1
    assert "socket_utils.cpp" in found[0]


def test_kernels_include_nothing_of_the_service(tmp_path: Path) -> None:
    found = findings(tmp_path, {"kernels/norm.cu": '#include "block_reduce.cuh"\n#include "base/error.hpp"\n'})
    assert len(found) == 1
    assert "kernels includes" in found[0]


def _run(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False, timeout=60)


def test_long_files_warn_and_do_not_fail(tmp_path: Path) -> None:
    assert findings(tmp_path, {"service/net/a.cpp": "\n" * 400, "service/net/b.cpp": "\n" * 401}) != []
    done = _run(tmp_path)
    assert done.returncode == 0
    assert "service/net/b.cpp:401: warning: 401 lines" in done.stdout
    assert "layers: 0 errors, 1 warnings" in done.stdout


def test_an_error_fails(tmp_path: Path) -> None:
    findings(tmp_path, {"service/base/a.cpp": '#include "app/main.hpp"\n'})
    done = _run(tmp_path)
    assert done.returncode == 1
    assert "service/base/a.cpp:1:" in done.stdout


def test_a_tree_without_sources_is_not_a_pass(tmp_path: Path) -> None:
    assert _run(tmp_path).returncode == 2
