"""Ranks as threads of one process, and a fake of the client under the torch adapter: real arithmetic, no daemon.

`LoopbackClient` stands where `gradsync.Client` does, for what the adapter calls. A bucket that was said to be ready is
remembered bit by bit, and finish() fails when it changed since: what a daemon would have reduced is gone by then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from types import SimpleNamespace

import torch

import gradsync
from gradsync._wire_errors import local_error
from gradsync.errors import ClipRaised, PlanMismatch, RankLost, WeightsDiverged

WAIT_S = 60.0


class World:
    """Lets the ranks exchange values; a rank that leaves fails those that wait for it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._given: dict[int, dict[int, object]] = {}
        self._round = [0] * size
        self._lost: set[int] = set()

    def exchange(self, rank: int, value: object) -> list:
        with self._changed:
            number = self._round[rank]
            self._round[rank] += 1
            given = self._given.setdefault(number, {})
            given[rank] = value
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: len(given) == self.size or self._lost, WAIT_S)
            if len(given) < self.size:
                lost = sorted(self._lost)
                raise local_error(RankLost, f"ranks {lost} left (waited: {not done})", "test", ranks=lost, attempt=0)
            return [given[other] for other in range(self.size)]

    def leave(self, rank: int) -> None:
        with self._changed:
            self._lost.add(rank)
            self._changed.notify_all()


class LoopbackClient:
    def __init__(self, world: World) -> None:
        self._world = world
        self.launched: list[tuple[int, int]] = []  # (bucket, attempt), as notified before finish
        self.declared: list[gradsync.Tensor] = []

    def attach(
        self, *, job: str, rank: int, world_size: int, meshes: dict, local_world_size: int, coordinator: str | None
    ) -> LoopbackJob:
        assert world_size == local_world_size == self._world.size
        assert coordinator is None
        return LoopbackJob(self, self._world, rank)

    def close(self) -> None:
        pass


class LoopbackJob:
    def __init__(self, client: LoopbackClient, world: World, rank: int) -> None:
        self.client, self.world, self.rank = client, world, rank
        self.next_step = 0
        self.epoch = 1
        self.grads = None
        self.paused = False

    def declare(
        self,
        tensors,
        *,
        accumulate=1,
        norm_type=2.0,
        clip=None,
        formula="strict",
        buckets="default",
        partial_sums="exact",
        divergence="report",
        device="cpu",
        timeout=None,
    ):
        assert (device, partial_sums) == ("cpu", "exact")
        everywhere = self.world.exchange(self.rank, list(tensors))
        for index, tensor in enumerate(tensors):
            for rank, other in enumerate(everywhere):
                bare = [dataclasses.replace(t, weight_fingerprint=None) for t in (tensor, other[index])]
                if len(other) != len(tensors) or bare[0] != bare[1]:
                    raise local_error(PlanMismatch, f"rank {rank} differs", "test", tensor=tensor.name)
                if other[index].weight_fingerprint != tensor.weight_fingerprint:
                    raise local_error(WeightsDiverged, f"'{tensor.name}'", "test", tensor=tensor.name, ranks=[rank])
        self.client.declared = list(tensors)
        groups = {"all": clip} if isinstance(clip, gradsync.Clip) else dict(clip or {})
        return LoopbackGrads(self, tensors, norm_type, groups, formula)

    @contextlib.contextmanager
    def pause(self):
        self.paused = True
        yield
        self.paused = False

    def detach(self) -> None:
        self.world.leave(self.rank)

    abandon = detach


class LoopbackGrads:
    early = True
    check = False
    BUCKET_TENSORS = 2  #: small buckets, in reverse order of declaration, of one dtype

    def __init__(self, job, tensors, norm_type, clip, formula) -> None:
        self.job, self.tensors, self.norm_type, self.clip, self.formula = job, tensors, norm_type, clip, formula
        self.memory = [torch.full(t.shape, math.nan, dtype=getattr(torch, t.dtype)) for t in tensors]
        self._index = {t.name: i for i, t in enumerate(tensors)}
        self._unused: set[int] = set()
        self._snapshots: dict[int, list[torch.Tensor]] = {}
        self.buckets = []
        for index in reversed(range(len(tensors))):
            last = self.buckets[-1].tensors if self.buckets else []
            if not last or len(last) == self.BUCKET_TENSORS or tensors[last[0]].dtype != tensors[index].dtype:
                self.buckets.append(SimpleNamespace(tensors=[]))
            self.buckets[-1].tensors.append(index)

    def input(self, name):
        return SimpleNamespace(torch=lambda: self.memory[self._index[name]])

    output = input

    def mark_unused_index(self, index: int) -> None:
        self._unused.add(index)

    def ready_bucket(self, bucket: int, micro_batch: int | None = None) -> None:
        assert bucket not in self._snapshots, "a bucket is ready once in a step"
        self._snapshots[bucket] = [self.memory[i].clone() for i in self.buckets[bucket].tensors]
        self.job.client.launched.append((bucket, self.job.next_step))

    def finish(
        self,
        step=None,
        scale=None,
        max_norm=gradsync.UNSET,
        timeout=None,
        *,
        ready=None,
        unused=(),
        bucket_digests=None,
        scaled=None,
        micro_batch=None,
    ):
        assert ready == "all"
        for bucket, snapshot in self._snapshots.items():
            for index, was in zip(self.buckets[bucket].tensors, snapshot, strict=True):
                assert same_bits(was, self.memory[index]), f"{self.tensors[index].name} was written after its launch"
        clip = dict(self.clip)
        if max_norm is not gradsync.UNSET:
            clip[next(iter(clip), "all")] = gradsync.Clip(max_norm=None if max_norm == math.inf else max_norm)
        local = (self.memory, self._unused.union(unused), bucket_digests, scale)
        ranks = self.job.world.exchange(self.job.rank, local)
        results, absent = self._reduce(ranks)
        self.job.world.exchange(self.job.rank, None)  # nobody writes before everybody has read
        report = self._clip(results, absent, clip, scale)
        report = self._act(results, clip, report, scaled if scale is None else True)
        stable = [b for b in range(len(self.buckets)) if bucket_digests and len({r[2][b] for r in ranks}) == 1]
        for index, result in results.items():
            self.memory[index].copy_(result)
        self._unused.clear()
        self._snapshots.clear()
        self.job.next_step += 1
        report = dataclasses.replace(
            report, absent=tuple(self.tensors[i].name for i in absent), stable_buckets=tuple(stable)
        )
        if report.action == "raise":
            raise ClipRaised(report)
        return report

    def _reduce(self, ranks):
        results, absent = {}, []
        for index, tensor in enumerate(self.tensors):
            wide = torch.float64 if tensor.dtype == "float64" else torch.float32
            shares = [r[0][index].to(wide) for r in ranks if index not in r[1]]
            if not shares:
                absent.append(index)
                continue
            total = shares[0].clone()
            for share in shares[1:]:
                total += share
            if any(getattr(p, "op", "") == "mean" for p in tensor.placements.values()):
                total /= len(ranks)
            results[index] = total.to(self.memory[index].dtype)
        return results, absent

    def _clip(self, results, absent, clip, scale):
        factor = 1.0 if scale is None else scale
        squares, found_inf, groups = {}, False, []
        for index, result in results.items():
            found_inf |= not bool(result.isfinite().all())
            group = self.tensors[index].clip_group
            squares[group] = squares.get(group, 0.0) + float(result.double().square().sum())
        for group in sorted(set(squares) | set(clip) or {"all"}):
            norm = float(torch.tensor(math.sqrt(squares.get(group, 0.0)) / factor, dtype=torch.float32))
            limit = clip[group].max_norm if group in clip else None
            coefficient = 1.0
            if limit is not None and self.formula == "torch":
                coefficient = min(1.0, limit / (norm + 1e-6))
            elif limit is not None and norm > limit:
                coefficient = limit / norm
            threshold = math.inf if limit is None else limit
            groups.append(gradsync.GroupReport(group, norm, threshold, coefficient, norm > threshold, "loopback"))
            for index, result in results.items():
                if self.tensors[index].clip_group == group and coefficient / factor != 1.0:
                    result *= coefficient / factor
        first = groups[0]
        return gradsync.StepReport(
            step=self.job.next_step,
            epoch=1,
            attempt=self.job.next_step,
            next_attempt=self.job.next_step + 1,
            norm=math.sqrt(sum(g.norm**2 for g in groups)),
            threshold=first.threshold,
            coefficient=first.coefficient,
            clipped=any(g.clipped for g in groups),
            skipped=False,
            reason="loopback",
            found_inf=found_inf,
            groups=tuple(groups),
            layers=(),
            nonfinite=(),
            divergence=(),
            absent=(),
            stable_buckets=(),
            counted_elements=sum(r.numel() for r in results.values()),
            collectives=len(self.buckets),
            data_path="loopback",
            policy_digest="",
            timings=gradsync.StepTimings(0.0, 0.0, 0.0, 0.0, 0.0),
        )

    def _act(self, results, clip, report, scaled):
        """What a norm that is not finite does to the step."""
        wanted = {
            g.name: "skip" if scaled else clip[g.name].nonfinite if g.name in clip else "propagate"
            for g in report.groups
            if not math.isfinite(g.norm)
        }
        decided = next((action for action in ("raise", "skip") if action in wanted.values()), "step")
        for index, result in results.items():
            if decided == "step" and wanted.get(self.tensors[index].clip_group) == "zero":
                result.zero_()
        groups = [
            dataclasses.replace(g, action="zero" if (decided, wanted.get(g.name)) == ("step", "zero") else decided)
            for g in report.groups
        ]
        return dataclasses.replace(
            report,
            groups=tuple(groups if wanted else report.groups),
            action=decided,
            skipped=decided != "step",
            reason="norm is not finite" if wanted else report.reason,
            decided_by=next((name for name, action in wanted.items() if action == decided), ""),
        )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))
