"""Memory of a GPU for gradients, on a driver that is emulated (`libcuda_fake.so`)."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon, report
from real_daemon import built_library

import gradsync
from gradsync import Partial, Replicate, Tensor
from gradsync._gpu import _arena, _driver, _memory
from gradsync.errors import ImportRefused, InsufficientMemory, NoGpu, UsageError

torch = pytest.importorskip("torch")

UUIDS = ["GPU-5a4d2c1e-0000-4000-8000-00000000000a", "GPU-5a4d2c1e-0000-4000-8000-00000000000b"]
PIECE = 2 << 20


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(UUIDS))
    found = _driver.Driver(str(built_library("libcuda_fake.so")))
    monkeypatch.setattr(_memory, "driver", lambda: found)
    return found


def maps() -> int:
    return Path("/proc/self/maps").read_text().count("emulated-gpu-memory")


def test_a_buffer_is_zeros_of_its_own_until_the_last_tensor_is_gone(driver: Any) -> None:
    before = maps()
    tensor = gradsync.alloc_grad_buffer(1000)
    assert tensor.dtype is torch.uint8
    assert tensor.numel() == PIECE
    assert not tensor.any()
    part = tensor[:800].view(torch.bfloat16)
    part.fill_(1.5)
    assert maps() == before + 1
    del tensor
    gc.collect()
    assert maps() == before + 1
    assert part.float().sum() == 600
    del part
    gc.collect()
    assert maps() == before


def test_sizes_are_rounded_up_to_what_the_driver_shares(driver: Any) -> None:
    sizes = {0: PIECE, 1: PIECE, PIECE: PIECE, PIECE + 1: 2 * PIECE}
    assert {nbytes: gradsync.alloc_grad_buffer(nbytes).numel() for nbytes in sizes} == sizes
    with pytest.raises(UsageError, match="nbytes is -1"):
        gradsync.alloc_grad_buffer(-1)


@pytest.mark.parametrize(
    ("device", "ordinal"), [("cuda", 0), ("cuda:1", 1), (1, 1), (torch.device("cuda", 1), 1), (torch.device("cuda"), 0)]
)
def test_a_device_is_named_as_torch_does(device: Any, ordinal: int) -> None:
    assert _memory.ordinal_of(device) == ordinal


@pytest.mark.parametrize("device", ["cpu", "cuda:", "cuda:x", "cuda:-1", "", None, "meta", -1])
def test_what_is_no_gpu_is_refused(device: Any) -> None:
    with pytest.raises(UsageError, match="a GPU is named cuda"):
        _memory.ordinal_of(device)


def test_what_is_exported_names_the_allocation_and_its_device(driver: Any) -> None:
    arena = _arena.GpuArena(5000, 1)
    first, again = arena.registration(), arena.registration()
    assert first["device"] == UUIDS[1]
    assert first["transport"] == "cuda_ipc"
    assert (first["bytes"], first["offset"], first["allocation_bytes"]) == (5000, 0, PIECE)
    assert len(bytes.fromhex(first["handle"])) == 64
    assert again["base"] == first["base"]
    assert again["generation"] > first["generation"]
    assert _arena.GpuArena(1, 0).registration()["generation"] > again["generation"]


def test_memory_of_a_gpu_is_read_by_torch_alone(driver: Any) -> None:
    arena = _arena.GpuArena(4096, 0)
    view = arena.view("w", (3, 2), "bfloat16", 64, 12)
    view.torch().fill_(2.0)
    assert arena._bytes[64:76].view(torch.bfloat16).tolist() == [2.0] * 6
    assert arena._bytes.count_nonzero() == 6
    assert (view.nbytes, view.shape, view.offset) == (12, (3, 2), 64)
    for read in (view.numpy, view.memoryview, lambda: arena.memory):
        with pytest.raises(UsageError, match=r"lies? on a GPU"):
            read()


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("cuMemAlloc_v2=2", InsufficientMemory),
        ("cuMemAlloc_v2=700", RuntimeError),
        ("cuIpcGetMemHandle=1", ImportRefused),
        ("cuCtxSynchronize=700", RuntimeError),
    ],
)
def test_results_of_the_driver_have_their_number(
    driver: Any, monkeypatch: pytest.MonkeyPatch, fails: str, error: type[Exception]
) -> None:
    name, code = fails.split("=")
    # The library reads the environment of C, which os.environ changes too.
    monkeypatch.setenv("GRADSYNC_FAKE_CUDA_FAILS", fails)

    def whole_life() -> None:
        arena = _arena.GpuArena(1, 0)
        arena.registration()
        arena.wait_written()

    with pytest.raises(error, match=rf"{name}: .*CUDA error {code}\)"):
        whole_life()


def test_a_machine_without_a_driver() -> None:
    with pytest.raises(NoGpu, match="libcuda-of-nowhere"):
        _driver.Driver("libcuda-of-nowhere.so.1")
    with pytest.raises(NoGpu, match="has no cuInit"):
        _driver.Driver("libm.so.6")


def test_a_device_that_is_not_there(driver: Any) -> None:
    with pytest.raises(NoGpu, match=r"cuDeviceGet: .* \(CUDA error 101\)"):
        gradsync.alloc_grad_buffer(1, "cuda:2")


def test_importing_the_package_loads_neither_driver_nor_torch() -> None:
    code = "import gradsync, sys; print('torch' in sys.modules, gradsync._gpu._driver.driver.cache_info().currsize)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["False", "0"]


def test_the_daemon_hears_of_a_bucket_when_the_gpu_has_written_it(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    bucket = {"dtype": "float32", "offset": 0, "bytes": 64, "tensors": [0]}
    answer = {"epoch": 1, "attempt": 0, "plan_digest": "ab" * 8, "arena_bytes": 64, "clip_groups": ["all"]}
    daemon.script["buffers.register"] = lambda params: {"buffer": 1, "bytes": params["bytes"]}
    daemon.script["gradients.declare"] = lambda _: {**answer, "buckets": [bucket], "offsets": [0]}
    daemon.script["step.finish"] = lambda _: report(0)
    job = client.attach("job", 0, 1)
    grads = job.declare([Tensor("w", (8,), placements={"dp": Partial("mean") >> Replicate()})], device="cuda")
    assert len(daemon.of("buffers.register")) == 1
    notify = job.notify

    def noted(method: str, params: dict[str, Any]) -> None:
        order.append(method)
        notify(method, params)

    monkeypatch.setattr(job, "notify", noted)
    monkeypatch.setattr(driver, "synchronize", lambda ordinal: order.append(f"written {ordinal}"))
    grads.ready("w")
    assert order == ["written 0", "bucket.ready"]
    grads.finish()
    assert order == ["written 0", "bucket.ready", "written 0"]


def test_a_table_of_statistics_does_not_lie_on_a_gpu(client: gradsync.Client) -> None:
    tensor = Tensor("w", (8,), placements={"dp": Replicate()})
    with pytest.raises(UsageError, match="lies in memory of the CPU"):
        client.attach("job", 0, 1).declare([tensor], data_path="stats", device="cuda")
