"""Training scripts as users write them, right ones and wrong ones, for test_audit.py: `audit_scripts.py CASE`.

`audit_scripts.py ranks N CASE` makes ranks without torchrun, by forks of a process that has loaded torch once.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEPS = 2
CASES: dict[str, Callable[[], None]] = {}


def case(function: Callable[[], None]) -> Callable[[], None]:
    CASES[function.__name__] = function
    return function


# what the ranks do


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def blocks() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9), nn.Linear(9, 5))


def train(model: Any, clip: Callable[[], Any], seed: int, dtype: Any = None) -> list[Any]:
    """Three steps; the audit sees two of them."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    norms = []
    generator = torch.Generator().manual_seed(seed)
    for _ in range(STEPS + 1):
        batch = torch.randn(3, 7, generator=generator)
        model(batch if dtype is None else batch.to(dtype)).float().square().sum().backward()
        norms.append(clip())
        optimizer.step()
        optimizer.zero_grad()
    return norms


@case
def ddp() -> None:
    """Writes all that could have changed."""
    import torch
    from torch import nn
    from torch.nn.utils import clip_grad_norm_

    model = nn.parallel.DistributedDataParallel(blocks())
    torch.manual_seed(1)
    norms = train(model, lambda: clip_grad_norm_(model.parameters(), 1.0), rank())
    found = hashlib.sha256()
    for tensor in (*model.parameters(), *norms, torch.get_rng_state(), torch.rand(3)):
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if "WRITE_TO" in os.environ:
        Path(os.environ["WRITE_TO"], f"rank-{rank()}").write_text(found.hexdigest())


@case
def fsdp2() -> None:
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp_shard", "tp"))
    model = blocks()
    for block in model:
        fully_shard(block, mesh=mesh["dp_shard"])
    fully_shard(model, mesh=mesh["dp_shard"])
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), rank())


@case
def shards_over_all() -> None:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    model = blocks()
    fully_shard(model, mesh=mesh)
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), rank())


@case
def fsdp1() -> None:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(blocks(), device_id=torch.device("cpu"))
    train(model, lambda: model.clip_grad_norm_(1.0), rank())


def stage() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(rank())
    return nn.Sequential(nn.Linear(7, 7 + rank()))


@case
def pipeline_that_forgets_pp() -> None:
    from torch import nn

    part = stage()
    train(part, lambda: nn.utils.clip_grad_norm_(part.parameters(), 1.0), 0)


@case
def copies_that_nobody_reduced() -> None:
    from torch import nn

    model = blocks()
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), rank())


@case
def pipeline_on_a_device_mesh() -> None:
    """As torchtitan does it: the norm of the stage, then over pp; the mesh says what pp is."""
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("pp",))
    part = stage()

    def clip() -> None:
        norm = nn.utils.get_total_norm([p.grad for p in part.parameters()]).square()
        dist.all_reduce(norm, group=mesh.get_group())
        nn.utils.clip_grads_with_norm_(part.parameters(), 1.0, norm.sqrt())

    train(part, clip, 0)


@case
def pipeline_with_the_line() -> None:
    from torch import nn

    import gradsync.torch as gst

    part = stage()
    audit = gst.audit(part, mesh={"pp": 2}, pp="pp", steps=STEPS, json=os.environ.get("WRITE_TO"))
    train(part, lambda: nn.utils.clip_grad_norm_(part.parameters(), 1.0), 0)
    audit.close()
    assert audit.exit_code == (1 if rank() == 0 and "GRADSYNC_INJECTED" not in os.environ else None), audit.exit_code


@case
def pipeline_of_its_own_norm() -> None:
    """A right one, which torch's functions see nothing of."""
    import torch
    import torch.distributed as dist

    import gradsync.torch as gst

    part = stage()
    gst.init(part, mesh={"pp": 2}, job="observed")  # observes: it is audited

    def clip() -> None:
        norm = torch.stack([p.grad.norm() for p in part.parameters()]).norm().square()
        dist.all_reduce(norm)
        gst.observe(norm.sqrt())
        for parameter in part.parameters():
            parameter.grad.mul_(torch.clamp(1.0 / norm.sqrt(), max=1.0))

    train(part, clip, 0)


@case
def tied_over_stages() -> None:
    """Counted twice, which nobody told the audit of."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.manual_seed(0)
    part = nn.Module()
    part.register_parameter("head" if rank() else "embed", nn.Parameter(torch.randn(5, 4)))
    for step in range(STEPS + 1):
        next(part.parameters()).grad = torch.full((5, 4), 1.5 + step)
        norm = nn.utils.get_total_norm([p.grad for p in part.parameters()]).square()
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(part.parameters(), 1.0, norm.sqrt())


@case
def optimizers_of_one_rank_alone() -> None:
    """Their tensors are no copies of anything, and nothing of them is clipped."""
    import torch
    from torch import nn

    model, own = blocks(), nn.Linear(2 + rank(), 2)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), 0)
    optimizer.step()


@case
def experts_summed_twice() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    model = nn.Module()
    torch.manual_seed(0)
    model.dense = nn.Parameter(torch.randn(4, 3))
    torch.manual_seed(1 + rank())
    model.experts = nn.Parameter(torch.randn(2, 3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS + 1):
        model.dense.grad = torch.full((4, 3), 0.5 + step)
        model.experts.grad = torch.full((2, 3, 2), 1.0 + rank() + step)
        experts = nn.utils.get_total_norm([model.experts.grad]).square()
        dist.all_reduce(experts)
        dist.all_reduce(experts)  # once too often
        norm = (nn.utils.get_total_norm([model.dense.grad]).square() + experts).sqrt()
        nn.utils.clip_grads_with_norm_([model.dense], 1.0, norm)
        nn.utils.clip_grads_with_norm_([model.experts], 1.0, norm)
        optimizer.step()


@case
def bfloat16() -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(7, 7) for _ in range(20))).bfloat16()
    train(model, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e9), 0, torch.bfloat16)


@case
def overflow() -> None:
    import torch
    from torch import nn

    model = nn.Linear(3, 2)
    for _ in range(STEPS + 1):  # without an optimizer a step is over when the next one clips
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e25)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def language_model() -> Any:
    """An embedding, a layer and a head, as scripts name them."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.ModuleDict({"wte": nn.Embedding(11, 7), "mlp": nn.Linear(7, 7), "lm_head": nn.Linear(7, 11, bias=False)})


def read_words(model: Any, seed: int = 0) -> Any:
    import torch

    words = torch.randint(11, (2, 5), generator=torch.Generator().manual_seed(seed))
    return model["lm_head"](model["mlp"](model["wte"](words)).relu()).float().square().mean()


def speak(clip: Callable[[Any], Any], groups: Callable[[Any], Any] | None = None) -> None:
    """`groups` makes the optimizers' parameters, by default one group of all; copies are equal without a reduction."""
    import torch

    model = language_model()
    held = [list(model.parameters())] if groups is None else groups(model)
    optimizers = [torch.optim.AdamW(one, lr=1e-2) for one in held]
    for step in range(STEPS + 1):
        read_words(model, step).backward()
        clip(model)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def without(model: Any, *names: str) -> list[Any]:
    return [parameter for name, parameter in model.named_parameters() if name not in names]


@case
def never_clips_the_embedding() -> None:
    from torch import nn

    speak(lambda model: nn.utils.clip_grad_norm_(without(model, "wte.weight"), 1.0))


@case
def rank_one_leaves_out_the_head() -> None:
    from torch import nn

    speak(lambda model: nn.utils.clip_grad_norm_(without(model, *(["lm_head.weight"] if rank() else [])), 1.0))


@case
def freezes_the_embedding() -> None:
    """And clips what is left, group by group, as an optimizer with two groups may want it."""
    from torch import nn

    def clip(model: Any) -> None:
        nn.utils.clip_grad_norm_(model["mlp"].parameters(), 1.0)
        nn.utils.clip_grad_norm_(model["lm_head"].parameters(), 1.0)

    def groups(model: Any) -> Any:
        model["wte"].requires_grad_(False)
        return [[{"params": list(part.parameters())} for part in (model["mlp"], model["lm_head"], model["wte"])]]

    speak(clip, groups)


@case
def one_optimizer_is_not_clipped() -> None:
    from torch import nn

    speak(
        lambda model: nn.utils.clip_grad_norm_(without(model, "wte.weight"), 1.0),
        lambda model: [without(model, "wte.weight"), list(model["wte"].parameters())],
    )


@case
def divides_the_parameters_among_optimizers() -> None:
    """Every rank has all gradients, and clips and steps its own share of them, by the norm of all."""
    import torch
    import torch.distributed as dist
    from torch import nn

    model = language_model()
    share = list(model.parameters())[rank() :: 2]
    optimizer = torch.optim.AdamW(share, lr=1e-2)
    for step in range(STEPS + 1):
        read_words(model, step).backward()
        norm = nn.utils.get_total_norm([p.grad for p in share]).square()
        dist.all_reduce(norm)
        nn.utils.clip_grads_with_norm_(share, 1.0, norm.sqrt())
        optimizer.step()
        model.zero_grad()
        for number, parameter in enumerate(model.parameters()):
            dist.broadcast(parameter.detach(), number % 2)


def scaled(how: str) -> Callable[[], None]:
    """A loss scale; the first step overflows and is skipped, as it often is."""

    def run() -> None:
        import torch
        from torch import nn

        model = language_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, **({"fused": True} if how == "fused" else {}))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        for step in range(STEPS + 2):
            scaler.scale(read_words(model, step)).backward()
            if step == 0 and how == "overflows":
                model["mlp"].bias.grad[0] = float("inf")
            if how in ("unscaled", "overflows"):
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), scaler.get_scale() if how == "meant" else 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return run


CASES["forgets_to_unscale"] = scaled("")
CASES["forgets_to_unscale_for_a_fused_optimizer"] = scaled("fused")
CASES["unscales_before_the_clip"] = scaled("unscaled")
CASES["unscales_and_overflows_once"] = scaled("overflows")
CASES["clips_by_a_threshold_in_scaled_units"] = scaled("meant")


@case
def forgets_to_unscale_for_two_optimizers() -> None:
    import torch
    from torch import nn

    model = language_model()
    optimizers = [torch.optim.SGD(part.parameters(), lr=1e-2) for part in model.values()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(STEPS + 1):
        scaler.scale(read_words(model, step)).backward()
        for part in model.values():
            nn.utils.clip_grad_norm_(part.parameters(), 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()


def adversary() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.ModuleDict({"G": nn.Linear(7, 7), "D": nn.Sequential(nn.Linear(7, 3), nn.LayerNorm(3))})


def play(model: Any, clip_g: Callable[[Any], Any]) -> None:
    """A GAN: each optimizer steps by itself, and what is clipped changes from step to step."""
    import torch
    from torch import nn

    generator, judge = model["G"], model["D"]
    optimizers = [torch.optim.Adam(part.parameters()) for part in (judge, generator)]
    for _ in range(STEPS + 1):
        for optimizer, part in zip(optimizers, (judge, generator), strict=True):
            optimizer.zero_grad()
            batch = torch.randn(3, 7)
            judge(generator(batch) if part is generator else batch).pow(3).sum().backward()
            if part is judge:
                nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            else:
                clip_g(part)
            optimizer.step()


@case
def gan_of_one_module() -> None:
    from torch import nn

    play(adversary(), lambda part: nn.utils.clip_grad_norm_(part.parameters(), 1.0))


def play_as_two(twice: bool) -> Callable[[], None]:
    def run() -> None:
        import torch
        from torch import nn

        parts = adversary()
        if "WORLD_SIZE" in os.environ:
            parts = {name: nn.parallel.DistributedDataParallel(part) for name, part in parts.items()}
            torch.manual_seed(rank())

        def clip(part: Any) -> None:
            norm = nn.utils.get_total_norm([p.grad for p in part.parameters()])
            nn.utils.clip_grads_with_norm_(part.parameters(), 1.0, 2 * norm if twice else norm)

        play({"G": parts["G"], "D": parts["D"]}, clip)

    return run


CASES["gan"] = play_as_two(False)
CASES["gan_whose_second_norm_is_wrong"] = play_as_two(True)


@case
def another_model_later() -> None:
    from torch import nn

    for _ in range(2):
        model = nn.Linear(7, 7)
        for _ in range(STEPS // 2):
            model.weight.grad, model.bias.grad = model.weight.detach() * 2, model.bias.detach() * 3
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)


@case
def only_some_steps_are_wrong() -> None:
    import torch
    from torch import nn

    model = adversary()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS + 1):
        model["D"](model["G"](torch.randn(3, 7))).pow(3).sum().backward()
        nn.utils.clip_grad_norm_(model["D"].parameters(), 1.0)
        if step > 0:
            norm = nn.utils.get_total_norm([p.grad for p in model["G"].parameters()])
            nn.utils.clip_grads_with_norm_(model["G"].parameters(), 1.0, 2 * norm)
        optimizer.step()
        optimizer.zero_grad()


@case
def layers_logged_before_the_clip() -> None:
    from torch import nn

    model = blocks()

    def clip() -> None:
        for layer in model:
            nn.utils.clip_grad_norm_(layer.parameters(), float("inf"))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    train(model, clip, 0)


@case
def fails_by_itself() -> None:
    overflow()
    os._exit(7)


@case
def raises_before_the_clip() -> None:
    if rank() == 1 or "RANK" not in os.environ:
        raise ZeroDivisionError("no batch is left\nat all")


@case
def raises_in_the_second_step() -> None:
    from torch import nn

    done: list[Any] = []

    def clip(model: Any) -> None:
        if len(done) == 1 and rank() == 1:
            raise ZeroDivisionError("no batch is left")
        done.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0))

    speak(clip)


@case
def clips_nothing() -> None:
    import torch

    assert torch.ones(1).sum() == 1


@case
def waits_for_a_signal() -> None:
    overflow()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    print("waiting", flush=True)
    signal.pause()


def run_case(name: str, last: Callable[[], object] = lambda: None) -> None:
    """`last` is called where the process would end."""
    if "WORLD_SIZE" in os.environ:
        import torch.distributed as dist

        store = os.environ.get("STORE")
        method = {} if store is None else {"init_method": f"file://{store}", "rank": rank()}
        dist.init_process_group("gloo", **method, **({"world_size": int(os.environ["WORLD_SIZE"])} if method else {}))
        CASES[name]()
        dist.barrier()
        sys.stdout.flush()
        last()
        os._exit(0)  # Gloo's threads end some processes by an abort, with and without an audit
    CASES[name]()


def fork_ranks(count: int, first: int = 0, world_size: int = 0) -> int | None:
    """Makes this process into ranks, which torch is loaded for once: None in each of them, and then the code of all.

    With a world size these are the ranks of one node, which meet the others in the folder $NODES.
    """
    own = tempfile.mkdtemp()  # the ranks must not remove it when they end
    sizes = {"WORLD_SIZE": str(world_size or count), **({"LOCAL_WORLD_SIZE": str(count)} if world_size else {})}
    os.environ |= {**sizes, "STORE": f"{os.environ.get('NODES', own)}/store", "OMP_NUM_THREADS": "1"}
    importlib.import_module("torch.distributed.fsdp")  # and torch, which heeds that number of threads

    ranks = []
    for number in range(first, first + count):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number - first)}
            return None
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    shutil.rmtree(own)
    return next((abs(code) for code in codes if code), 0)


def main(last: Callable[[], object] = lambda: None) -> None:
    """What a file of cases does as a program."""
    name = sys.argv[1]
    if name == "ranks":
        name = sys.argv[3]
        code = fork_ranks(int(sys.argv[2]), *map(int, sys.argv[4:]))
        if code is not None:
            sys.exit(code)
    run_case(name, last)


if __name__ == "__main__":
    main()
