#pragma once
// The fields of what lanes say of communicators, as lane_fields.hpp has those of commands and reports.

#include "device/codec/byte_archive.hpp"
#include "device/nccl/communicator.hpp"

namespace gradsync::device {

void fields(auto& archive, Same<NcclUniqueId> auto& value) {
  auto& [bytes] = value;
  archive(bytes);
}

void fields(auto& archive, Same<CommunicatorSpec> auto& value) {
  auto& [axes, ranks, own] = value;
  archive(axes, ranks, own);
}

void fields(auto& archive, Same<CommunicatorId> auto& value) {
  auto& [name, instance, id] = value;
  archive(name, instance, id);
}

void fields(auto& archive, Same<CommunicatorOffer> auto& value) {
  auto& [name, members, own, instance, id] = value;
  archive(name, members, own, instance, id);
}

}  // namespace gradsync::device
