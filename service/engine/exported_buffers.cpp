// The part of BufferTable that is about lanes in workers: memory of GPUs, which ranks allocate and export, and arenas
// that such a lane maps beside that of the host.

#include "engine/buffer_table.hpp"
#include "engine/memory_probes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gradsync::engine {

namespace {

Error released_meanwhile(std::uint64_t buffer) {
  return make_error(ErrorCode::UnknownBuffer, fmt::format("buffer {} was released while it was mapped", buffer));
}

}  // namespace

Result<void> BufferTable::check_exported(SessionId session, const ExportedBuffer& exported) const {
  if (Result<void> range = check_range(exported); !range) {
    return range;
  }
  if (Result<void> few = check_count(session); !few) {
    return few;
  }
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    return {};
  }
  if (exported.generation < found->second.generation) {
    return invalid_params(
        "generation",
        fmt::format(
            "generation is {}, memory of generation {} is registered", exported.generation, found->second.generation
        ),
        "raise the generation whenever exported memory may have been freed"
    );
  }
  const auto& known = found->second.allocations;
  const auto differs = [&](const Allocation& other, device::LaneId lane) {
    return other.handle != exported.handle || other.bytes != exported.allocation_bytes ||
           lanes_.gpu_of(lane) != exported.gpu;
  };
  for (auto it = known.lower_bound({exported.generation, exported.base, 0}); it != known.end(); ++it) {
    const auto [generation, base, lane] = it->first;
    if (generation != exported.generation || base != exported.base) {
      break;
    }
    if (differs(it->second, lane)) {
      return invalid_params(
          "handle",
          "this allocation is registered with another handle, size or device",
          "other memory at the same address is another generation"
      );
    }
  }
  return {};
}

void BufferTable::register_exported(
    SessionId session, const Holder& holder, ExportedBuffer exported, device::LaneId lane, Reply<RegisteredBuffer> reply
) {
  const std::uint64_t id = next_buffer_;
  Buffer& buffer = add(session, holder, exported.size_bytes);
  buffer.lane = lane;
  buffer.map_submitted = true;
  OfSession& of_session = sessions_.at(session);
  of_session.generation = exported.generation;
  const AllocationKey key{exported.generation, exported.base, lane};
  Allocation& allocation = of_session.allocations[key];
  if (allocation.buffers == 0) {
    allocation = {next_allocation_++, exported.handle, exported.allocation_bytes, 0};
  }
  ++allocation.buffers;
  ++mapped_on_[lane];
  buffer.exported = Exported{key, exported.offset, std::move(reply)};
  lanes_[lane].submit(device::MapBuffer{
      id,
      UniqueFd(),
      exported.size_bytes,
      device::ExportedMemory{allocation.number, std::move(exported.handle), exported.allocation_bytes, exported.offset}}
  );
}

void BufferTable::forget_waiting() {
  for (auto& [id, buffer] : buffers_) {
    if (buffer.exported) {
      buffer.exported->waiting.clear();
    }
  }
}

/// Its own lane has what was exported since it was registered.
void BufferTable::map_elsewhere(std::uint64_t id, Buffer& buffer, device::LaneId lane) {
  if (lane == buffer.lane || !buffer.elsewhere.insert(lane).second) {
    return;
  }
  ++mapped_on_[lane];
  device::MapBuffer map{id, UniqueFd(), buffer.size_bytes};
  if (buffer.exported) {
    const Allocation& allocation = sessions_.at(buffer.session).allocations.at(buffer.exported->key);
    map.exported =
        device::ExportedMemory{allocation.number, allocation.handle, allocation.bytes, buffer.exported->offset};
  } else {
    map.fd = duplicate(buffer.fd);
  }
  lanes_[lane].submit(std::move(map));
}

void BufferTable::unmap_elsewhere(std::uint64_t id, Buffer& buffer) {
  for (const device::LaneId other : buffer.elsewhere) {
    lanes_[other].submit(device::UnmapBuffer{id});
  }
}

void BufferTable::on_mapped(device::LaneId lane, std::uint64_t buffer) {
  const auto it = buffers_.find(buffer);
  if (it == buffers_.end() || !it->second.exported || it->second.lane != lane) {
    return;
  }
  if (const Reply<RegisteredBuffer> reply = take_waiting(*it->second.exported)) {
    reply(RegisteredBuffer{buffer, it->second.size_bytes});
  }
}

Reply<RegisteredBuffer> BufferTable::take_waiting(Exported& exported) {
  Reply<RegisteredBuffer> reply;
  reply.swap(exported.waiting);
  return reply;
}

void BufferTable::on_map_failed(device::LaneId lane, const device::Failed& report) {
  const auto it = buffers_.find(report.buffer);
  if (it == buffers_.end()) {
    return;
  }
  if (it->second.lane != lane) {
    const bool named = !it->second.exported && lanes_.is_lost(lane);  // by the plan, until it is unloaded
    if (!named && it->second.elsewhere.erase(lane) != 0) {            // the plan that needed it there is not loaded
      leave_lane(lane);
    }
    return;
  }
  if (!it->second.exported) {
    it->second.map_submitted = false;
    return;
  }
  const Reply<RegisteredBuffer> reply = take_waiting(*it->second.exported);
  erase(it);
  if (reply) {
    reply(make_error(
        report.out_of_memory ? ErrorCode::InsufficientMemory : ErrorCode::ImportRefused, report.message, report.hint
    ));
  }
}

void BufferTable::lose_lane(device::LaneId lane) {
  for (auto& [id, buffer] : buffers_) {
    if (buffer.lane == lane && buffer.exported) {
      buffer.exported->lost = true;
    }
    if (!buffer.exported && buffer.users == 0) {
      leave_lost_lanes(buffer);
    }
  }
}

/// A plan that uses the arena still has the lane.
void BufferTable::leave_lost_lanes(Buffer& buffer) {
  std::erase_if(buffer.elsewhere, [this](device::LaneId lane) {
    const bool lost = lanes_.is_lost(lane);
    if (lost) {
      leave_lane(lane);
    }
    return lost;
  });
}

void BufferTable::leave_lane(device::LaneId lane) {
  const auto found = mapped_on_.find(lane);
  if (--found->second == 0) {
    mapped_on_.erase(found);
  }
}

/// The buffer goes; so does what is known of its allocation, with the last one.
void BufferTable::close_exported(std::uint64_t id, Buffer& buffer) {
  auto& allocations = sessions_.at(buffer.session).allocations;
  const auto found = allocations.find(buffer.exported->key);
  if (--found->second.buffers == 0) {
    allocations.erase(found);
  }
  leave_lane(buffer.lane);
  if (const Reply<RegisteredBuffer> reply = take_waiting(*buffer.exported)) {
    reply(released_meanwhile(id));
  }
}

}  // namespace gradsync::engine
