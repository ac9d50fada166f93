#include "engine/memory_probes.hpp"

#include <fmt/format.h>

#include <string>

namespace gradsync::engine {

namespace {

constexpr std::size_t kHandleBytes = 64;
constexpr std::uint64_t kAlignment = 16;  // of the kernels' vectors
constexpr const char* kTryAgain = "try again: another worker is started";

}  // namespace

Result<void> check_range(const ExportedBuffer& exported) {
  if (exported.size_bytes == 0) {
    return invalid_params("bytes", "bytes is 0", "a buffer needs at least 64 bytes");
  }
  if (exported.handle.size() != kHandleBytes) {
    return invalid_params(
        "handle",
        fmt::format("handle has {} bytes, a handle of CUDA has {}", exported.handle.size(), kHandleBytes),
        "send what cuIpcGetMemHandle gives, as 128 hex digits"
    );
  }
  if (exported.offset % kAlignment != 0) {
    return invalid_params(
        "offset",
        fmt::format("offset is {}, not a multiple of {}", exported.offset, kAlignment),
        "gradsync.alloc_grad_buffer() aligns buffers"
    );
  }
  if (exported.offset > exported.allocation_bytes ||
      exported.size_bytes > exported.allocation_bytes - exported.offset) {
    return invalid_params(
        "bytes",
        fmt::format(
            "{} bytes at offset {} reach beyond the allocation, which has {}",
            exported.size_bytes,
            exported.offset,
            exported.allocation_bytes
        ),
        "send the base and size of the allocation that cuMemGetAddressRange returns"
    );
  }
  return {};
}

Result<void> MemoryProbes::check(const Holder& holder, const ExportedBuffer& exported) const {
  if (Result<void> range = check_range(exported); !range) {
    return range;
  }
  if (const auto refused = waiting_.refuse(holder)) {
    return make_error(
        ErrorCode::LimitExceeded,
        fmt::format(
            "{} probes of {} wait for a worker, its limit is {} ({} in all)",
            refused->held,
            refused->whose,
            refused->most,
            waiting_.most()
        ),
        "try again when they are answered"
    );
  }
  return {};
}

void MemoryProbes::start(
    std::uint64_t number, const Holder& holder, ExportedBuffer exported, device::LaneId lane, Reply<device::Probe> reply
) {
  probes_.emplace(number, Waiting{lane, std::move(reply), FairBudget::Share(waiting_, holder, 1)});
  lanes_[lane].submit(device::ProbeMemory{
      number,
      exported.size_bytes,
      device::ExportedMemory{number, std::move(exported.handle), exported.allocation_bytes, exported.offset}});
}

void MemoryProbes::on_probed(device::LaneId lane, device::Probed report) {
  if (const Reply<device::Probe> reply = take(lane, report.buffer)) {
    reply(std::move(report.probe));
  }
}

bool MemoryProbes::on_failed(device::LaneId lane, const device::Failed& report) {
  const Reply<device::Probe> reply = take(lane, report.buffer);
  if (reply) {
    reply(make_error(
        report.out_of_memory ? ErrorCode::InsufficientMemory : ErrorCode::ImportRefused,
        report.message,
        !report.lane_lost ? report.hint : report.hint + (report.hint.empty() ? "" : "; ") + kTryAgain
    ));
  }
  return static_cast<bool>(reply);
}

Reply<device::Probe> MemoryProbes::take(device::LaneId lane, std::uint64_t number) {
  const auto found = probes_.find(number);
  if (found == probes_.end() || found->second.lane != lane) {
    return {};
  }
  Reply<device::Probe> reply = std::move(found->second.reply);
  probes_.erase(found);
  return reply;
}

}  // namespace gradsync::engine
