"""Memory of a GPU for gradients, on a driver that is emulated (`libcuda_fake.so`)."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_daemon import FakeDaemon, Fault, report
from real_daemon import built_library

import gradsync
from gradsync import Partial, Replicate, Shard, Tensor
from gradsync._gpu import _arena, _driver, _memory
from gradsync.errors import ImportRefused, InsufficientMemory, NoGpu, UsageError

torch = pytest.importorskip("torch")

UUIDS = ["GPU-5a4d2c1e-0000-4000-8000-00000000000a", "GPU-5a4d2c1e-0000-4000-8000-00000000000b"]
PIECE = 2 << 20


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(UUIDS))
    found = _driver.Driver(str(built_library("libcuda_fake.so")))
    for module in (_memory, _arena):
        monkeypatch.setattr(module, "driver", lambda: found)
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
    arena = _arena.GpuArena.of(5000, 1, None)
    first, again = arena.registration(), arena.registration()
    assert first["device"] == UUIDS[1]
    assert first["transport"] == "cuda_ipc"
    assert (first["bytes"], first["offset"], first["allocation_bytes"]) == (5000, 0, PIECE)
    assert len(bytes.fromhex(first["handle"])) == 64
    assert again["base"] == first["base"]
    assert again["generation"] > first["generation"]
    assert _arena.GpuArena.of(1, 0, None).registration()["generation"] > again["generation"]


def test_memory_of_a_gpu_is_read_by_torch_alone(driver: Any) -> None:
    arena = _arena.GpuArena.of(4096, 0, None)
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
        ("cuPointerGetAttribute=1", ImportRefused),
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
        arena = _arena.GpuArena.of(1, 0, None)
        arena.registration()
        arena.wait_written()

    with pytest.raises(error, match=rf"{name}: .*CUDA error {code}\)"):
        whole_life()


def test_memory_that_cuda_does_not_share_is_refused_before_it_is_exported(
    driver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = _arena.GpuArena.of(1, 0, None)
    monkeypatch.setenv("GRADSYNC_FAKE_CUDA_UNSHARED", str(arena.registration()["base"] + 100))
    monkeypatch.setenv("GRADSYNC_FAKE_CUDA_FAILS", "cuIpcGetMemHandle=1")  # a call of it would say so
    with pytest.raises(ImportRefused, match=r"CUDA does not share the memory at 0x.*alloc_grad_buffer.*expandable_seg"):
        arena.registration()
    monkeypatch.delenv("GRADSYNC_FAKE_CUDA_FAILS")
    assert _arena.GpuArena.of(1, 0, None).registration(), "other memory is exported"


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


TENSORS = [Tensor(name, (20,), placements={"dp": Partial("mean") >> Replicate()}) for name in "ab"]
NEEDED = 256  # bytes: each tensor has 80, rounded up to 128


@pytest.fixture
def attached(client: gradsync.Client, daemon: FakeDaemon) -> gradsync.Job:
    bucket = {"dtype": "float32", "offset": 0, "bytes": NEEDED, "tensors": [0, 1]}
    answer = {"epoch": 1, "attempt": 0, "plan_digest": "ab" * 8, "arena_bytes": NEEDED, "clip_groups": ["all"]}
    daemon.script["buffers.register"] = lambda params: {"buffer": params["generation"], "bytes": params["bytes"]}
    daemon.script["gradients.declare"] = lambda _: {**answer, "buckets": [bucket], "offsets": [0, 128]}
    return client.attach("job", 0, 1)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float64])
def test_memory_of_the_caller_is_exported_by_allocation_and_offset(
    driver: Any, attached: gradsync.Job, daemon: FakeDaemon, dtype: torch.dtype
) -> None:
    whole = gradsync.alloc_grad_buffer(PIECE + 1)
    given = whole[4096 : 4096 + 512].view(dtype).reshape(2, -1)
    grads = attached.declare(TENSORS, memory=given.requires_grad_(dtype.is_floating_point))
    (sent,) = daemon.of("buffers.register")
    assert (sent["base"], sent["allocation_bytes"]) == (whole.data_ptr(), 2 * PIECE)
    assert (sent["offset"], sent["bytes"], sent["device"]) == (4096, NEEDED, UUIDS[0])
    for name, offset in (("a", 4096), ("b", 4096 + 128)):
        grads.input(name).torch().fill_(2.5)
        assert whole[offset : offset + 80].view(torch.float32).tolist() == [2.5] * 20
    assert whole.count_nonzero() == 2 * 20 * 2, "2.5 has two bytes that are not zero"


def test_a_device_that_is_named_beside_memory_is_that_of_the_memory(
    driver: Any, attached: gradsync.Job, daemon: FakeDaemon
) -> None:
    attached.declare(TENSORS, device="cuda:1", memory=gradsync.alloc_grad_buffer(1, 1))
    assert daemon.of("buffers.register")[0]["device"] == UUIDS[1]


class OnTheFirstGpu(torch.Tensor):
    """A tensor of the CPU that says it lies on a GPU, as those of CUDA do."""

    device = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("memory", "device", "said"),
    [
        (lambda whole: whole[8 : 8 + NEEDED], "cpu", "begins 8 bytes into its allocation.* a multiple of 16"),
        (lambda whole: whole[: NEEDED - 1], "cpu", "memory has 255 bytes, and these tensors take 256"),
        (lambda whole: whole[:0], "cpu", "memory has 0 bytes"),
        (lambda whole: whole[::2], "cpu", r"memory is not contiguous.*\(1048576,\).*\(2,\)"),
        (lambda whole: whole[: 4 * NEEDED].view(-1, 32).T, "cpu", r"memory is not contiguous.*\(32, 32\).*\(1, 32\)"),
        (lambda _: torch.empty(PIECE, device="meta"), "cpu", "memory lies on meta"),
        (lambda whole: whole.numpy(), "cpu", "memory is of type ndarray; give a torch.Tensor"),
        (lambda whole: whole, "xpu", "a GPU is named cuda"),
    ],
)
def test_memory_that_cannot_be_an_arena_is_refused_before_it_is_exported(
    driver: Any,
    attached: gradsync.Job,
    daemon: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    memory: Any,
    device: str,
    said: str,
) -> None:
    whole = gradsync.alloc_grad_buffer(PIECE)
    monkeypatch.setenv("GRADSYNC_FAKE_CUDA_FAILS", "cuIpcGetMemHandle=1")  # a call of it would say so
    with pytest.raises(UsageError, match=said):
        attached.declare(TENSORS, device=device, memory=memory(whole))
    assert not daemon.of("buffers.register")


def test_memory_has_room_for_the_outputs_of_scattered_tensors(driver: Any, client: gradsync.Client) -> None:
    scattered = Tensor("w", (20,), placements={"dp": Partial("mean") >> Shard(0)})
    small = gradsync.alloc_grad_buffer(1)[: 128 + 64 - 1]  # 80 bytes and half of that, each rounded up
    with pytest.raises(UsageError, match="memory has 191 bytes, and these tensors take 192"):
        client.attach("job", 0, 2).declare([scattered], memory=small)


@pytest.mark.parametrize("machine", ["with a GPU", "without a driver"])
def test_memory_of_a_cpu_is_refused(
    driver: Any, attached: gradsync.Job, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    if machine == "with a GPU":
        monkeypatch.setattr(driver, "device_type", "cuda")
    else:
        monkeypatch.setattr(_arena, "driver", lambda: _driver.Driver("libcuda-of-nowhere.so.1"))
    with pytest.raises(UsageError, match=r"memory lies on cpu.*arenas of CPUs come from the daemon"):
        attached.declare(TENSORS, memory=torch.zeros(NEEDED))


def test_another_device_than_that_of_the_memory_is_refused(
    driver: Any, attached: gradsync.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "device_type", "cuda")
    given = torch.zeros(NEEDED).as_subclass(OnTheFirstGpu)
    with pytest.raises(UsageError, match="memory lies on cuda:0, and device names cuda:1"):
        attached.declare(TENSORS, device="cuda:1", memory=given)


def test_memory_of_the_caller_is_held_until_the_daemon_has_let_it_go(
    driver: Any, attached: gradsync.Job, daemon: FakeDaemon
) -> None:
    mapped: list[int] = []
    before = maps()

    def noted(_: Any) -> dict[str, Any]:
        gc.collect()
        mapped.append(maps() - before)
        return {}

    daemon.script["buffers.release"] = daemon.script["job.detach"] = noted
    for time in range(3):
        attached.declare(TENSORS, memory=gradsync.alloc_grad_buffer(NEEDED))
        gc.collect()
        assert maps() == before + 1, "that of the declaration in force, which nobody else holds"
        assert mapped == [2] * time, "the one before was there when the daemon heard that it is released"
    first, second, _ = (sent["generation"] for sent in daemon.of("buffers.register"))
    assert [sent["buffer"] for sent in daemon.of("buffers.release")] == [first, second]
    attached.detach()
    gc.collect()
    assert mapped == [2, 2, 1]
    assert maps() == before


def test_a_table_of_statistics_does_not_lie_on_a_gpu(client: gradsync.Client) -> None:
    tensor = Tensor("w", (8,), placements={"dp": Replicate()})
    job = client.attach("job", 0, 1)
    for given in ({"device": "cuda"}, {"memory": torch.zeros(64)}):
        with pytest.raises(UsageError, match="lies in memory of the CPU: leave device and memory out"):
            job.declare([tensor], data_path="stats", **given)


def worker_that(daemon: FakeDaemon, place: Any, reads: bool = True, writes: bool = True) -> None:
    """A daemon whose worker probes the memory of a tensor, or does only a part of that."""

    def probed(params: dict[str, Any]) -> dict[str, Any]:
        there = place[: params["bytes"]]
        read = bytes(there.tolist()) if reads else bytes(params["bytes"])
        if writes:
            there.copy_(255 - there)
        return {"mapped_bytes": 3 * PIECE, "read": read.hex(), "open_s": 0.5, "copy_s": 0.25, "close_s": 0.125}

    daemon.script["ipc.probe"] = probed


def test_a_probe_shows_that_both_sides_see_one_memory_and_leaves_it_as_it_was(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon
) -> None:
    whole = gradsync.alloc_grad_buffer(PIECE, 1).fill_(7)
    worker_that(daemon, whole[4096:])
    given = whole[4096:8192].view(torch.float32).reshape(2, -1)
    found = client.probe_gpu("cuda:1", memory=given)
    assert found == gradsync.GpuProbe(UUIDS[1], 3 * PIECE, open_s=0.5, copy_s=0.25, close_s=0.125)
    (sent,) = daemon.of("ipc.probe")
    assert set(sent) == {"transport", "device", "handle", "allocation_bytes", "offset", "bytes"}
    assert (sent["device"], sent["allocation_bytes"]) == (UUIDS[1], PIECE)
    assert (sent["offset"], sent["bytes"]) == (4096, 64)
    assert bool((whole == 7).all())


def test_a_probe_of_few_bytes_writes_no_more_than_those(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon
) -> None:
    whole = gradsync.alloc_grad_buffer(1)
    worker_that(daemon, whole)
    client.probe_gpu(memory=whole[:20])
    assert daemon.of("ipc.probe")[0]["bytes"] == 20
    with pytest.raises(UsageError, match="memory has no bytes"):
        client.probe_gpu(memory=whole[:0])
    assert len(daemon.of("ipc.probe")) == 1


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ({"reads": False}, r"read (00){64} where this process wrote"),
        ({"writes": False}, r"wrote .* where this process"),
    ],
)
def test_a_worker_that_mapped_other_memory_is_found_out(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon, does: dict[str, bool], said: str
) -> None:
    whole = gradsync.alloc_grad_buffer(1).fill_(7)
    worker_that(daemon, whole, **does)
    with pytest.raises(ImportRefused, match=said + r".*: other memory"):
        client.probe_gpu(memory=whole)
    assert bool((whole == 7).all())


def test_a_probe_that_the_daemon_refuses_leaves_the_memory_as_it_was(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon
) -> None:
    def refuse(_: dict[str, Any]) -> None:
        raise Fault("import_refused", "opening a memory handle: (CUDA error 201)")

    daemon.script["ipc.probe"] = refuse
    whole = gradsync.alloc_grad_buffer(1).fill_(7)
    with pytest.raises(ImportRefused, match=r"\(CUDA error 201\).*scripted hint"):
        client.probe_gpu(memory=whole)
    assert bool((whole == 7).all())


def test_a_probe_without_memory_allocates_some_and_frees_it(
    driver: Any, client: gradsync.Client, daemon: FakeDaemon
) -> None:
    mapped: list[int] = []

    def probed(_: dict[str, Any]) -> dict[str, Any]:
        mapped.append(maps())
        return {"mapped_bytes": 1, "read": "", "open_s": 0, "copy_s": 0, "close_s": 0}

    daemon.script["ipc.probe"] = probed
    with pytest.raises(ImportRefused, match="read  where this process wrote"):
        client.probe_gpu("cuda:1")
    assert daemon.of("ipc.probe")[0]["device"] == UUIDS[1]
    gc.collect()
    assert maps() < mapped[0]
