"""Faults in the reduction of GPUs: its kernels, and the tables and findings of a lane that uses them."""

from __future__ import annotations

from mutant import Mutant

__all__ = ["GPU", "IMPORT"]


def kernel(name: str, fault: str, old: str, new: str, file: str = "reduce/reduce_kernel.cuh") -> Mutant:
    return Mutant(name, fault, "gpu", f"kernels/{file}", old, new)


def lane(name: str, fault: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "gpu", "service/device/gpu/gpu_plan.cpp", old, new)


def imported(name: str, fault: str, path: str, old: str, new: str) -> Mutant:
    return Mutant(name, fault, "import", path, old, new)


_IMPORTED = "service/device/gpu/imported_memory.cpp"
_EXPORTED = "service/engine/exported_buffers.cpp"

#: In memory of other processes: how it is registered, mapped and let go.
IMPORT = (
    imported(
        "import-offset-dropped",
        "Every buffer of an allocation begins at its base.",
        _IMPORTED,
        "{allocation_->at(offset_), size_bytes_}",
        "{allocation_->at(0), size_bytes_}",
    ),
    imported(
        "import-size-believed",
        "An owner that lies about its allocation has the worker write beyond it.",
        _IMPORTED,
        "memory.allocation_bytes <= mapped_bytes,",
        "memory.allocation_bytes <= mapped_bytes || memory.allocation_bytes != 0,",
    ),
    imported(
        "import-never-closed",
        "Memory of ranks that are gone stays mapped, so the GPU does not get it back.",
        _IMPORTED,
        "    if (base_ != nullptr && library_.close_imported(base_) != 0) {",
        "    if (base_ == nullptr && library_.close_imported(base_) != 0) {",
    ),
    imported(
        "import-leaked-after-a-size-check",
        "Memory that turned out smaller than its owner says stays mapped after it was refused.",
        _IMPORTED,
        "  check_mapped(memory, allocation->bytes());\n  return std::make_unique<Buffer>",
        "  if (memory.allocation_bytes > allocation->bytes()) {\n"
        "    (void)new std::shared_ptr<const Allocation>(allocation);\n"
        "  }\n"
        "  check_mapped(memory, allocation->bytes());\n  return std::make_unique<Buffer>",
    ),
    imported(
        "import-worker-kept-after-a-fault",
        "A worker whose GPU faulted goes on, and fails every job of that GPU from then on.",
        "service/device/failure.cpp",
        "about.lane_lost = error.kind() == DeviceError::Kind::DeviceLost;",
        "about.lane_lost = false;",
    ),
    imported(
        "import-fault-of-a-product-missed",
        "A GPU that faults while it multiplies is not known to be lost.",
        "service/device/gpu/kernel_library.cpp",
        "    must(wait(), what);  // these functions give no number: a device that is lost gives it again\n",
        "",
    ),
    imported(
        "import-by-the-bytes-of-a-handle",
        "Other memory at the same address gets the mapping of what was freed.",
        _EXPORTED,
        "    allocation = {next_allocation_++, exported.handle,",
        "    allocation = {std::hash<std::string>{}(exported.handle), exported.handle,",
    ),
    imported(
        "import-older-generation-taken",
        "A handle of memory that was freed is mapped.",
        _EXPORTED,
        "if (exported.generation < found->second.generation) {",
        "if (exported.generation + 1 < found->second.generation) {",
    ),
    imported(
        "import-range-overflows",
        "An offset near the end of the address space passes for one inside.",
        "service/engine/memory_probes.cpp",
        "exported.size_bytes > exported.allocation_bytes - exported.offset) {",
        "exported.size_bytes + exported.offset > exported.allocation_bytes) {",
    ),
    imported(
        "import-refusal-keeps-the-buffer",
        "A buffer that could not be mapped can be declared.",
        _EXPORTED,
        "  const Reply<RegisteredBuffer> reply = take_waiting(*it->second.exported);\n  erase(it);\n",
        "  const Reply<RegisteredBuffer> reply = take_waiting(*it->second.exported);\n",
    ),
    imported(
        "import-answered-before-it-is-mapped",
        "A trainer is told that its memory is registered while the worker may still refuse it.",
        "service/engine/engine.cpp",
        "register_exported(session, holder, std::move(exported), *lane, std::move(reply));",
        "register_exported(session, holder, std::move(exported), *lane, [](const Result<RegisteredBuffer>&) {});\n"
        "  reply(RegisteredBuffer{1, 4096});",
    ),
    imported(
        "import-lost-buffer-declared",
        "Buffers that a dead worker had are taken for usable.",
        "service/engine/buffer_table.cpp",
        "  if (it->second.exported && it->second.exported->lost) {",
        "  if (it->second.exported && it->second.exported->lost && it->second.fd.valid()) {",
    ),
    imported(
        "import-dead-worker-kept",
        "A registration after the worker died goes to the dead one.",
        "service/engine/lanes.cpp",
        "return !entry.lost && !entry.gpu.empty() && entry.gpu == gpu;",
        "return !entry.gpu.empty() && entry.gpu == gpu;",
    ),
    imported(
        "share-commit-after-one-lane",
        "A step is done while another GPU still multiplies its part.",
        "service/engine/step/step_machine_end.cpp",
        "  if (busy()) {\n    return actions;  // another lane still multiplies\n  }\n",
        "",
    ),
    imported(
        "share-decided-after-one-lane",
        "The norm is that of one GPU's buckets.",
        "service/engine/step/step_machine_end.cpp",
        "if (course_.measured.size() == lanes_.size()) {",
        "if (course_.measured.size() >= 1) {",
    ),
    imported(
        "share-halves-swapped",
        "Each of two lanes reduces the buckets that the other one measures and multiplies.",
        "service/engine/step/step_machine.cpp",
        "      lane_of_bucket_[bucket] = lanes_.size();\n",
        "      lane_of_bucket_[bucket] = shares.size() - 1 - lanes_.size();\n",
    ),
    imported(
        "share-buckets-of-others-multiplied",
        "A lane multiplies what another one has reduced, and that one once more.",
        "service/device/host/gradient_scaling.cpp",
        "outcomes_ == nullptr || bucket.reduced == plan_.attempt().applied;",
        "outcomes_ == nullptr || bucket.reduced == plan_.attempt().applied || !bucket.deferred;",
    ),
    imported(
        "share-added-in-the-order-of-lanes",
        "The norm's last bit depends on how the plan was cut.",
        "service/engine/step/join_cells.cpp",
        "  std::ranges::sort(cells, {}, &device::TensorCell::tensor);\n",
        "",
    ),
    imported(
        "share-loaded-by-one-lane",
        "Ranks step before every lane has the plan.",
        "service/engine/job/job_load.cpp",
        "--active_->loading == 0",
        "--active_->loading < active_->shares.size()",
    ),
    imported(
        "share-left-mapped-elsewhere",
        "Workers of other GPUs keep the memory of ranks that are gone.",
        "service/engine/exported_buffers.cpp",
        "for (const device::LaneId other : buffer.elsewhere) {",
        "for (const device::LaneId other : std::set<device::LaneId>()) {",
    ),
    imported(
        "import-ready-before-it-is-written",
        "The daemon hears that a bucket is ready while the GPU still writes it.",
        "clients/python/src/gradsync/_step/_grads.py",
        "        if self._wait_written is not None:\n            self._wait_written()\n        # The daemon",
        "        # The daemon",
    ),
    imported(
        "import-generation-again",
        "Memory is registered at a restarted daemon by the generation that it had.",
        "clients/python/src/gradsync/_gpu/_memory.py",
        "    return next(_generations)\n",
        "    return 1\n",
    ),
    imported(
        "import-given-memory-let-go",
        "Memory of the caller goes back to its allocator while the worker may write it.",
        "clients/python/src/gradsync/_job.py",
        "        self._arena = arena\n",
        "        self._arena = None\n",
    ),
    imported(
        "import-given-memory-from-its-base",
        "Gradients are written over what lies in front of them in the caller's allocation.",
        "clients/python/src/gradsync/_gpu/_arena.py",
        '"offset": address - exported.base,',
        '"offset": 0,',
    ),
    imported(
        "import-given-memory-too-small",
        "Gradients reach beyond the tensor that the caller gave, into its neighbours.",
        "clients/python/src/gradsync/_gpu/_arena.py",
        "        if data.numel() < size_bytes:\n",
        "        if data.numel() < 0:\n",
    ),
    imported(
        "import-unshared-memory-exported",
        "Memory that CUDA does not share is exported all the same.",
        "clients/python/src/gradsync/_gpu/_driver.py",
        "            if not capable.value:\n",
        "            if capable.value < 0:\n",
    ),
    imported(
        "probe-left-open",
        "Memory that was only tried stays mapped, so the GPU does not get it back.",
        _IMPORTED,
        'library_.must(library_.close_imported(std::exchange(base_, nullptr)), "closing the mapping");',
        "base_ = nullptr;",
    ),
    imported(
        "probe-writes-nothing",
        "A worker that can only read passes for one that shares the memory.",
        _IMPORTED,
        "static_cast<char>(~byte)",
        "byte",
    ),
    imported(
        "probe-believed",
        "A worker that mapped other memory passes for one that shares it.",
        "clients/python/src/gradsync/_gpu/_probe.py",
        '    if answer["read"] != pattern.hex():\n',
        '    if not isinstance(answer["read"], str):\n',
    ),
    imported(
        "probe-loses-its-worker",
        "A worker is ended while it opens a GPU for a probe, which then waits for ever.",
        "service/engine/engine_state.cpp",
        "buffers.on_lane(lane) || probes.on_lane(lane)",
        "buffers.on_lane(lane)",
    ),
    imported(
        "hung-worker-is-the-daemon",
        "Trainers are told to restart a daemon that only has to kill a worker.",
        "service/engine/step/lane_stop.cpp",
        "const bool killed = ended_by == EndedBy::Kill;",
        "const bool killed = false;",
    ),
)

GPU = (
    kernel(
        "gpu-sources-in-another-order",
        "Ranks are added from the last to the first: the sums round differently.",
        "address_of(pass, task.sum.first_source + source);\n        if (address == 0) {\n          continue;",
        "address_of(pass, task.sum.first_source + task.sum.sources - 1 - source);\n"
        "        if (address == 0) {\n          continue;",
    ),
    kernel(
        "gpu-one-accumulator",
        "The squares of a vector go to one accumulator: the norm has other last bits than on CPUs.",
        "powers.template add_power<kSums>(i,",
        "powers.template add_power<kSums>(0,",
    ),
    kernel(
        "gpu-rounding-error-dropped",
        "What a sum of float64 squares loses by rounding is not kept.",
        "low_[i] += sum.low + low;",
        "low_[i] += low;",
        "reduce/reduce_team.cuh",
    ),
    kernel(
        "gpu-old-output-taken-for-a-gradient",
        "A sum to which nobody contributed keeps what its outputs held.",
        "      write_zeros<Format>(pass, item, task);\n",
        "",
    ),
    kernel(
        "gpu-replicas-not-compared",
        "Replicas that drift apart are not noticed.",
        "task.counted = !counted && pass.compare ? chunk.counted : 0;",
        "task.counted = 0;",
    ),
    kernel(
        "gpu-every-divisor-inverted",
        "A division by 3 is a multiplication by a rounded third.",
        "exact ? Division::ByReciprocal : Division::True",
        "Division::ByReciprocal",
        "reduce/reduce.cu",
    ),
    kernel(
        "gpu-nan-of-another-rank",
        "A value that is not finite is counted for the wrong rank.",
        "atomicAdd(inputs.nonfinite + place,",
        "atomicAdd(inputs.nonfinite + source,",
    ),
    kernel(
        "gpu-runs-side-by-side",
        "A shard that lies in the gradient in rows is read as if it lay together.",
        "item.source + run * item.distance + at",
        "item.source + run * item.run + at",
        "reduce/reduce_team.cuh",
    ),
    kernel(
        "gpu-first-sum-counted",
        "A replica without a contribution is counted, and the norm is 0.",
        "counted = !chunk.has_counted;",
        "counted = at == 0;",
    ),
    kernel(
        "gpu-scale-forgotten",
        "A sum that left the range is taken again without its scale.",
        "const double quotient = value / scale;",
        "const double quotient = value;",
        "reduce/reduce_powers.cu",
    ),
    lane(
        "gpu-unused-tensor-read",
        "The old gradient of a rank that did not use a tensor is added.",
        "unused ? nullptr : plan.input_of(tensor, rank)",
        "plan.input_of(tensor, rank)",
    ),
    lane(
        "gpu-absent-tensor-written",
        "A tensor that nobody used gets zeros for a gradient.",
        "absent ? nullptr : plan.output_of(tensor, rank)",
        "plan.output_of(tensor, rank)",
    ),
    lane(
        "gpu-zeros-multiplied",
        "A group whose norm is not finite is multiplied by its coefficient, and not set to zero.",
        "if (outcome.action == plan::StepAction::Zero) {",
        "if (outcome.action == plan::StepAction::Raise) {",
    ),
    lane(
        "gpu-tied-copy-not-multiplied",
        "The clip multiplies a tied tensor once more, and its copy never.",
        "written ? gpu_address(memory_of(plan, output)) : 0;",
        "written ? gpu_address(plan.output_of(part.tensor, output.member.rank)) : 0;",
    ),
    lane(
        "gpu-difference-of-another-sum",
        "Ranks that agree are named for those that drifted apart.",
        "if (!table_.differs(first_sum_[part] + sum)) {",
        "if (!table_.differs(first_sum_[part])) {",
    ),
    lane(
        "gpu-reports-before-the-device-is-done",
        "The lane says that gradients are multiplied while the device still writes them.",
        '  library_.must(library_.wait(), "multiplying");  // the report says that gradients may be read\n',
        "",
    ),
    Mutant(
        "gpu-sums-of-before",
        "Sums that were taken again are not used.",
        "gpu",
        "service/device/gpu/gpu_table.cpp",
        "      if (scales_[chunk] != 0) {",
        "      if (scales_[chunk] != 0 && lists_.buckets.empty()) {",
    ),
)
