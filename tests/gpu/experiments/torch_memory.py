"""Question 5: can torch's gradients live in memory that a sidecar maps, and can the optimizer apply the coefficient?

    allocator             memory of the caching allocator: what the driver says of a small, a large and an interior
                          tensor, and whether another process reads the same bytes; `allocation_bytes` is what a handle
                          shows.
    allocator_expandable  the same with expandable_segments: the exact error that the client must translate.
    as_grad               memory of cuMemAlloc as `.grad`: backward must fill it in place, fused AdamW must give the
                          bits of ordinary gradients, another process must read the same gradients.
    as_grad_expandable    the same with expandable_segments.
    created               memory of cuMemCreate, exported as a descriptor, as `.grad`: torch must view it in place and
                          backward fill it, another process map the descriptor, read the gradients and write to them.
                          `legacy_ipc_capable` says whether a handle would do as well.
    grad_scale            a coefficient on the device as the optimizer's `grad_scale` (its inverse) instead of a pass
                          over the gradients: milliseconds of both, bits of the weights, what found_inf does.

Prints one JSON line per part. `--emulate` runs what needs no GPU on the CPU, at small sizes, to test this program.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cuda_driver import Driver, DriverError, die_with_parent

EXPERIMENT = "torch_memory"
SECONDS = 90  # of all parts; scripts/gpu/experiments.sh gives a little more
PART_SECONDS = 40
EMULATED_SECONDS = 600
MIB = 1 << 20
# torch 2.9 renamed the variable and still reads the old one.
EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}


class Importer:
    """The process of ipc_importer.py; it ends with this one, whose end closes its input."""

    def __init__(self, *inherited: int) -> None:
        program = Path(__file__).with_name("ipc_importer.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=inherited,
        )

    def read(self, handle: bytes, offset: int, size: int) -> dict[str, Any]:
        return self._ask({"handle": handle.hex(), "offset": offset, "bytes": size})

    def read_descriptor(self, descriptor: int, size: int) -> dict[str, Any]:
        return self._ask({"descriptor": descriptor, "bytes": size})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the importer ended with {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()


class DeviceBytes:
    """What torch.as_tensor takes without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def digest(tensor: Any) -> str:
    import torch

    return hashlib.sha256(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes()).hexdigest()


def exported(driver: Driver, importer: Importer, tensor: Any) -> dict[str, Any]:
    """What the driver says of a tensor's memory, and whether the other process reads its bytes."""
    import torch

    torch.cuda.synchronize()
    address = tensor.data_ptr()
    answer: dict[str, Any] = {"legacy_ipc_capable": driver.legacy_ipc_capable(address)}
    whole = driver.range_of(address)
    answer |= {"offset": address - whole.base, "allocation_bytes": whole.bytes, "bytes": tensor.nbytes}
    for name, at in (("get_handle", address), ("get_handle_of_base", whole.base)):
        try:
            handle = driver.export(at)
            answer[name] = "CUDA_SUCCESS"
        except DriverError as error:
            answer[name] = str(error)
            continue
        read = importer.read(handle, address - whole.base, tensor.nbytes)
        answer["opened"] = read.get("error", "ok")
        answer["mapped_bytes"] = read.get("mapped_bytes")
        answer["same_bytes"] = read.get("sha256") == digest(tensor)
    return answer


def allocator(_emulated: bool) -> dict[str, Any]:
    import torch

    torch.manual_seed(1)
    large = torch.randn(16 * MIB, device="cuda")
    driver, importer = Driver(), Importer()
    try:
        return {
            "small": exported(driver, importer, torch.randn(256, device="cuda")),
            "large": exported(driver, importer, large),
            "interior": exported(driver, importer, large[3 * MIB : 5 * MIB]),
            "backend": torch.cuda.get_allocator_backend(),
        }
    finally:
        importer.end()


def own_bytes(size: int, emulated: bool) -> Any:
    """A tensor of bytes that is not torch's, and is never freed."""
    import torch

    if emulated:
        return torch.frombuffer(bytearray(size), dtype=torch.uint8)
    address = Driver().allocate((size + 2 * MIB - 1) // (2 * MIB) * (2 * MIB))
    wrapped = torch.as_tensor(DeviceBytes(address, size), device="cuda")
    if wrapped.data_ptr() != address:
        raise RuntimeError("torch.as_tensor copied the memory")
    wrapped.zero_()
    return wrapped


def step_all(model: Any, optimizer: Any, batches: Sequence[Any]) -> None:
    for batch in batches:
        optimizer.zero_grad(set_to_none=False)
        model(batch).square().mean().backward()
        optimizer.step()


def as_grad(emulated: bool) -> dict[str, Any]:
    import torch

    device = "cpu" if emulated else "cuda"
    answer: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(2)
        layers = [torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)]
        model = torch.nn.Sequential(*layers).to(device, dtype)
        reference = copy.deepcopy(model)
        memory = own_bytes(sum(p.nbytes + 256 for p in model.parameters()), emulated)
        addresses, offset = [], 0
        for parameter in model.parameters():
            gradient = memory[offset : offset + parameter.nbytes].view(dtype).view(parameter.shape)
            parameter.grad = gradient
            addresses.append(gradient.data_ptr())
            offset += (parameter.nbytes + 255) // 256 * 256
        for parameter in reference.parameters():
            parameter.grad = torch.zeros_like(parameter)
        batches = [torch.randn(32, 256, device=device, dtype=dtype) for _ in range(5)]
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        step_all(model, optimizer, batches)
        step_all(reference, torch.optim.AdamW(reference.parameters(), fused=True), batches)
        pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
        found: dict[str, Any] = {
            "filled_in_place": [p.grad.data_ptr() for p in model.parameters() if p.grad is not None] == addresses,
            "any_gradient": any(bool(p.grad.count_nonzero() > 0) for p in model.parameters() if p.grad is not None),
            "same_weights": all(torch.equal(ours, theirs) for ours, theirs in pairs),
            "same_gradients": all(
                ours.grad is not None and theirs.grad is not None and torch.equal(ours.grad, theirs.grad)
                for ours, theirs in pairs
            ),
        }
        if not emulated:
            importer = Importer()
            try:
                found["seen_by_the_other_process"] = exported(Driver(), importer, memory)
            finally:
                importer.end()
        # The default of zero_grad: what happens to the memory when somebody uses it.
        optimizer.zero_grad()
        model(batches[0]).square().mean().backward()
        gradients = [p.grad for p in model.parameters()]
        found["ours_after_set_to_none"] = [g.data_ptr() for g in gradients if g is not None] == addresses
        answer[str(dtype).removeprefix("torch.")] = found
    return answer


def created(_emulated: bool) -> dict[str, Any]:
    import torch

    torch.manual_seed(4)
    model = torch.nn.Linear(512, 512, bias=False, device="cuda")  # the context is torch's
    driver = Driver()
    unit = driver.granularity()
    size = (model.weight.nbytes + unit - 1) // unit * unit
    began = time.perf_counter()
    memory = driver.create(size)
    address = driver.map(memory, size)
    mapped = time.perf_counter()
    descriptor = driver.export_descriptor(memory)
    answer: dict[str, Any] = {
        "granularity": unit,
        "create_and_map_us": (mapped - began) * 1e6,
        "export_us": (time.perf_counter() - mapped) * 1e6,
        "legacy_ipc_capable": driver.legacy_ipc_capable(address),
    }
    view = torch.as_tensor(DeviceBytes(address, size), device="cuda")
    answer["viewed_in_place"] = view.data_ptr() == address
    view.zero_()
    gradient = view[: model.weight.nbytes].view(torch.float32).view(model.weight.shape)
    model.weight.grad = gradient
    model(torch.randn(8, 512, device="cuda")).square().mean().backward()
    torch.cuda.synchronize()
    answer["filled_in_place"] = model.weight.grad.data_ptr() == address and bool(gradient.count_nonzero() > 0)
    before = int(view[0].item())
    importer = Importer(descriptor)
    try:
        read = importer.read_descriptor(descriptor, size)
    finally:
        importer.end()
    answer |= {name: read.get(name) for name in ("import_us", "map_us")}
    answer["opened"] = read.get("error", "ok")
    answer["sees_the_other_process_write"] = int(view[0].item()) == before ^ 0xFF
    view[0] = before
    answer["same_bytes"] = read.get("sha256") == digest(view)
    return answer


def ulps(ours: Any, theirs: Any) -> int:
    """The largest distance of two float32 tensors in units in the last place."""
    import torch

    def ordered(values: Any) -> Any:
        bits = values.view(torch.int32).to(torch.int64)
        return torch.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))

    return int((ordered(ours) - ordered(theirs)).abs().max().item())


class Optimizers:
    """Equal weights and gradients, once for each way to apply a coefficient."""

    def __init__(self, count: int, size: int, device: str) -> None:
        import torch

        torch.manual_seed(3)
        self.weights = [torch.nn.Parameter(torch.randn(size, device=device)) for _ in range(count)]
        self.gradients = [torch.randn(size, device=device) for _ in range(count)]
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.grad = gradient.clone()
        self.optimizer: Any = torch.optim.AdamW(self.weights, fused=True)

    def refill(self) -> None:
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            assert weight.grad is not None
            weight.grad.copy_(gradient)

    def scale_and_step(self, coefficient: Any) -> None:
        import torch

        torch._foreach_mul_([w.grad for w in self.weights if w.grad is not None], coefficient)
        self.optimizer.step()

    def step_with_grad_scale(self, coefficient: Any, found_inf: Any) -> None:
        self.optimizer.grad_scale = coefficient.reciprocal()
        self.optimizer.found_inf = found_inf
        self.optimizer.step()


def milliseconds(work: Callable[[], None], before: Callable[[], None], emulated: bool, samples: int) -> float:
    """Median time of `work` on the device, with `before` untimed."""
    import torch

    times = []
    for _ in range(samples):
        before()
        if emulated:
            began = time.perf_counter()
            work()
            times.append((time.perf_counter() - began) * 1e3)
            continue
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def grad_scale(emulated: bool) -> dict[str, Any]:
    import torch

    device, count, size = ("cpu", 3, 1000) if emulated else ("cuda", 100, 1_000_000)
    answer: dict[str, Any] = {"elements": count * size}
    no_inf = torch.zeros((), device=device)
    for name, value in (("power_of_two", 0.5), ("any", 0.37)):
        coefficient = torch.tensor(value, device=device)
        by_pass = Optimizers(count, size, device)
        by_scale = Optimizers(count, size, device)
        for _ in range(3):
            by_pass.refill()
            by_scale.refill()
            by_pass.scale_and_step(coefficient)
            by_scale.step_with_grad_scale(coefficient, no_inf)
        pairs = list(zip(by_pass.weights, by_scale.weights, strict=True))
        gradient = by_scale.weights[0].grad
        assert gradient is not None
        answer[name] = {
            "same_weights": all(torch.equal(a, b) for a, b in pairs),
            "largest_ulps": max(ulps(a.detach(), b.detach()) for a, b in pairs),
            "gradients_are_scaled_after": bool(
                torch.allclose(gradient, by_scale.gradients[0] * value, rtol=1e-5, atol=0)
            ),
        }
    one = Optimizers(count, size, device)
    before = [w.detach().clone() for w in one.weights]
    one.step_with_grad_scale(torch.tensor(0.37, device=device), torch.ones((), device=device))
    steps = [int(state["step"].item()) for state in one.optimizer.state.values()]
    answer["found_inf"] = {
        "weights_kept": all(torch.equal(a, b.detach()) for a, b in zip(before, one.weights, strict=True)),
        "steps_counted": max(steps),
    }
    coefficient = torch.tensor(0.37, device=device)
    samples = 3 if emulated else 20
    by_pass = Optimizers(count, size, device)
    by_scale = Optimizers(count, size, device)
    for way in (by_pass, by_scale):
        way.optimizer.step()
    answer["pass_and_step_ms"] = milliseconds(
        lambda: by_pass.scale_and_step(coefficient), by_pass.refill, emulated, samples
    )
    answer["step_with_grad_scale_ms"] = milliseconds(
        lambda: by_scale.step_with_grad_scale(coefficient, no_inf), by_scale.refill, emulated, samples
    )
    plain = Optimizers(count, size, device)
    answer["plain_step_ms"] = milliseconds(lambda: plain.optimizer.step(), plain.refill, emulated, samples)
    return answer


PARTS: dict[str, tuple[Callable[[bool], dict[str, Any]], dict[str, str]]] = {
    "allocator": (allocator, {}),
    "allocator_expandable": (allocator, EXPANDABLE),
    "as_grad": (as_grad, {}),
    "as_grad_expandable": (as_grad, EXPANDABLE),
    "created": (created, {}),
    "grad_scale": (grad_scale, {}),
}
EMULATED = ("as_grad", "grad_scale")


def say(**fields: Any) -> None:
    print(json.dumps({"experiment": EXPERIMENT} | fields), flush=True)


def run_part(name: str, emulated: bool) -> int:
    """In a process of its own: an allocator's settings are read once."""
    import torch

    die_with_parent()
    fields: dict[str, Any] = {"part": name, "torch": torch.__version__}
    fields["device"] = "emulated on the host" if emulated else torch.cuda.get_device_name()
    began = time.monotonic()
    try:
        answer = PARTS[name][0](emulated)
    except Exception as error:  # whatever it is, is the answer of this part
        say(**fields, failed=f"{type(error).__name__}: {error}")
        return 1
    say(**fields, **answer, seconds=time.monotonic() - began)
    return 0


def run_all(emulated: bool) -> int:
    try:
        import torch
    except ImportError as error:
        say(skipped=f"{sys.executable} has no torch", reason=str(error))
        return 0
    if not emulated and not torch.cuda.is_available():
        say(skipped="no CUDA device", reason="torch.cuda.is_available() is False")
        return 0
    worst = 0
    whole, part = (EMULATED_SECONDS, EMULATED_SECONDS) if emulated else (SECONDS, PART_SECONDS)
    end = time.monotonic() + whole
    for name in EMULATED if emulated else PARTS:
        left = end - time.monotonic()
        if left < part / 4:
            say(part=name, skipped="the time of this experiment was used up before this part")
            continue
        seconds = min(left, part)
        command = [sys.executable, __file__, "--part", name] + (["--emulate"] if emulated else [])
        inherited = {key: value for key, value in os.environ.items() if key not in EXPANDABLE}
        try:
            ended = subprocess.run(command, env=inherited | PARTS[name][1], timeout=seconds, check=False)
            worst = max(worst, abs(ended.returncode))
            if ended.returncode not in (0, 1):
                say(part=name, failed=f"the process ended with {ended.returncode}")
        except subprocess.TimeoutExpired:
            say(part=name, hang=f"no answer within {seconds:.0f} s")
    return min(worst, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--emulate", action="store_true")
    options = parser.parse_args()
    return run_part(options.part, options.emulate) if options.part else run_all(options.emulate)


if __name__ == "__main__":
    sys.exit(main())
