#pragma once
// The fields of everything that a command or a report of a lane holds, in the order in which they cross. Each struct is
// taken apart as a whole, so that a field added to it does not compile until it is named here; then the version of the
// codec goes up.

#include "device/codec/byte_archive.hpp"
#include "device/codec/communicator_fields.hpp"
#include "device/lane.hpp"

namespace gradsync::device {

template <>
struct LastOf<plan::DType> {
  static constexpr auto value = plan::DType::Float64;
};

template <>
struct LastOf<plan::ClipMode> {
  static constexpr auto value = plan::ClipMode::Torch;
};

template <>
struct LastOf<plan::ZeroRule> {
  static constexpr auto value = plan::ZeroRule::Zero;
};

template <>
struct LastOf<plan::ClipBound::Kind> {
  static constexpr auto value = plan::ClipBound::Kind::ZScore;
};

template <>
struct LastOf<plan::NonfiniteAction> {
  static constexpr auto value = plan::NonfiniteAction::Raise;
};

template <>
struct LastOf<plan::SpikeAction> {
  static constexpr auto value = plan::SpikeAction::Raise;
};

template <>
struct LastOf<plan::StepAction> {
  static constexpr auto value = plan::StepAction::Raise;
};

template <>
struct LastOf<HashSums> {
  static constexpr auto value = HashSums::In;
};

// ---- layouts

void fields(auto& archive, Same<LaneMember> auto& value) {
  auto& [rank, copy] = value;
  archive(rank, copy);
}

void fields(auto& archive, Same<LaneSum> auto& value) {
  auto& [sources, destinations] = value;
  archive(sources, destinations);
}

void fields(auto& archive, Same<LaneStride> auto& value) {
  auto& [count, distance] = value;
  archive(count, distance);
}

void fields(auto& archive, Same<LanePart> auto& value) {
  auto& [tensor, sums, elements, first, run, strides] = value;
  archive(tensor, sums, elements, first, run, strides);
}

void fields(auto& archive, Same<LaneTensor> auto& value) {
  auto& [bucket, clip_group, layer, first_part, parts, copies] = value;
  archive(bucket, clip_group, layer, first_part, parts, copies);
}

void fields(auto& archive, Same<LaneBucket> auto& value) {
  auto& [dtype, tensors, divisor] = value;
  archive(dtype, tensors, divisor);
}

void fields(auto& archive, Same<LaneArena> auto& value) {
  auto& [input, output] = value;
  archive(input, output);
}

void fields(auto& archive, Same<plan::TransferStream> auto& value) {
  auto& [sources, destinations, elements] = value;
  archive(sources, destinations, elements);
}

void fields(auto& archive, Same<plan::TransferBlock> auto& value) {
  auto& [stream, owner, first_piece, pieces, elements] = value;
  archive(stream, owner, first_piece, pieces, elements);
}

void fields(auto& archive, Same<plan::TransferPiece> auto& value) {
  auto& [tensor, part, sum, first, elements] = value;
  archive(tensor, part, sum, first, elements);
}

void fields(auto& archive, Same<plan::BucketTransfer> auto& value) {
  auto& [bucket, result, partial, sum, streams, blocks, pieces] = value;
  archive(bucket, result, partial, sum, streams, blocks, pieces);
}

void fields(auto& archive, Same<LaneCommunicator> auto& value) {
  auto& [spec, nodes] = value;
  archive(spec, nodes);
}

void fields(auto& archive, Same<LaneCommunicators> auto& value) {
  auto& [job, fresh, needed] = value;
  archive(job, fresh, needed);
}

void fields(auto& archive, Same<LaneNodes> auto& value) {
  auto& [node, node_of_rank, transfers, staging_bytes, classes, communicators] = value;
  archive(node, node_of_rank, transfers, staging_bytes, classes, communicators);
}

void fields(auto& archive, Same<LanePlan> auto& value) {
  auto& [world_size, norm_type, tensors, parts, sums, buckets, arenas, arena_of_rank, clip_groups, layers, rank_buffers, nodes] =
      value;
  archive(world_size, norm_type, tensors, parts, sums, buckets, arenas, arena_of_rank, clip_groups, layers);
  archive(rank_buffers, nodes);
}

void fields(auto& archive, Same<StatsHolder> auto& value) {
  auto& [rank, row, box, elements] = value;
  archive(rank, row, box, elements);
}

void fields(auto& archive, Same<StatsTensor> auto& value) {
  auto& [clip_group, layer, counted, holders] = value;
  archive(clip_group, layer, counted, holders);
}

void fields(auto& archive, Same<StatsTie> auto& value) {
  auto& [copy, counted, boxes] = value;
  archive(copy, counted, boxes);
}

void fields(auto& archive, Same<StatsPlan> auto& value) {
  auto& [world_size, norm_type, clip_groups, layers, tensors, ties, rank_buffers, elsewhere, classes] = value;
  archive(world_size, norm_type, clip_groups, layers, tensors, ties, rank_buffers, elsewhere, classes);
}

// ---- rules and outcomes

void fields(auto& archive, Same<plan::ClipBound> auto& value) {
  auto& [kind, begin, mean, deviation, z] = value;
  archive(kind, begin, mean, deviation, z);
}

void fields(auto& archive, Same<plan::ClipRule> auto& value) {
  auto& [max_norm, mode, zero_rule, norm_dtype, bound, nonfinite, spike, spike_above] = value;
  archive(max_norm, mode, zero_rule, norm_dtype, bound, nonfinite, spike, spike_above);
}

void fields(auto& archive, Same<plan::ClipOutcome> auto& value) {
  auto& [norm, threshold, coefficient, multiplier, multiply, clipped, reason, action, spike, decides] = value;
  archive(norm, threshold, coefficient, multiplier, multiply, clipped, reason, action, spike, decides);
}

void fields(auto& archive, Same<NonfiniteFinding> auto& value) {
  auto& [tensor, count, inputs] = value;
  archive(tensor, count, inputs);
}

void fields(auto& archive, Same<DivergenceFinding> auto& value) {
  auto& [tensor, ranks, majority, suspects] = value;
  archive(tensor, ranks, majority, suspects);
}

void fields(auto& archive, Same<MissingFinding> auto& value) {
  auto& [tensor, ranks] = value;
  archive(tensor, ranks);
}

void fields(auto& archive, Same<StepMath> auto& value) {
  auto& [norm, groups, raw_group_norms, layer_norms, nonfinite, divergence, missing, absent, nonfinite_total, counted_elements, norm_s, clip_s] =
      value;
  archive(norm, groups, raw_group_norms, layer_norms, nonfinite, divergence, missing, absent);
  archive(nonfinite_total, counted_elements, norm_s, clip_s);
}

// ---- commands

void fields(auto& archive, Same<ExportedMemory> auto& value) {
  auto& [allocation, handle, allocation_bytes, offset] = value;
  archive(allocation, handle, allocation_bytes, offset);
}

void fields(auto& archive, Same<MapBuffer> auto& value) {
  auto& [buffer, fd, size_bytes, exported] = value;
  archive(buffer, fd, size_bytes, exported);
}

void fields(auto& archive, Same<ProbeMemory> auto& value) {
  auto& [buffer, size_bytes, exported] = value;
  archive(buffer, size_bytes, exported);
}

void fields(auto& archive, Same<UnmapBuffer> auto& value) {
  auto& [buffer, fd, size_bytes] = value;
  archive(buffer, fd, size_bytes);
}

void fields(auto& archive, Same<LoadPlan> auto& value) {
  auto& [plan, layout] = value;
  archive(plan, layout);
}

void fields(auto& archive, Same<LoadStats> auto& value) {
  auto& [plan, layout] = value;
  archive(plan, layout);
}

void fields(auto& archive, Same<NodeConnection> auto& value) {
  auto& [node, partials, results] = value;
  archive(node, partials, results);
}

void fields(auto& archive, Same<ConnectNodes> auto& value) {
  auto& [plan, connections, communicators] = value;
  archive(plan, connections, communicators);
}

void fields(auto& archive, Same<UnloadPlan> auto& value) {
  auto& [plan] = value;
  archive(plan);
}

void fields(auto& archive, Same<UnusedTensor> auto& value) {
  auto& [tensor, rank] = value;
  archive(tensor, rank);
}

void fields(auto& archive, Same<ReduceBucket> auto& value) {
  auto& [plan, tag, bucket, unused, compare, defer] = value;
  archive(plan, tag, bucket, unused, compare, defer);
}

void fields(auto& archive, Same<FinishStep> auto& value) {
  auto& [plan, tag, scale, rules, apply, stamp, raw, sums] = value;
  archive(plan, tag, scale, rules, apply, stamp, raw, sums);
}

void fields(auto& archive, Same<MeasureBuckets> auto& value) {
  auto& [plan, tag, buckets] = value;
  archive(plan, tag, buckets);
}

void fields(auto& archive, Same<ScaleGradients> auto& value) {
  auto& [plan, tag, outcomes, buckets, absent] = value;
  archive(plan, tag, outcomes, buckets, absent);
}

void fields(auto& archive, Same<Abort> auto& value) {
  auto& [plan, tag] = value;
  archive(plan, tag);
}

void fields(auto& archive, Same<ReadRows> auto& value) {
  auto& [plan, tag, classes, boxes] = value;
  archive(plan, tag, classes, boxes);
}

void fields(auto& archive, Same<SetWidth> auto& value) {
  auto& [wide] = value;
  archive(wide);
}

// ---- reports

void fields(auto& archive, Same<Mapped> auto& value) {
  auto& [buffer] = value;
  archive(buffer);
}

void fields(auto& archive, Same<Probe> auto& value) {
  auto& [mapped_bytes, read, open_s, copy_s, close_s] = value;
  archive(mapped_bytes, read, open_s, copy_s, close_s);
}

void fields(auto& archive, Same<Probed> auto& value) {
  auto& [buffer, probe] = value;
  archive(buffer, probe);
}

void fields(auto& archive, Same<Unmapped> auto& value) {
  auto& [buffer] = value;
  archive(buffer);
}

void fields(auto& archive, Same<LoadedCommunicators> auto& value) {
  auto& [version, offers] = value;
  archive(version, offers);
}

void fields(auto& archive, Same<Loaded> auto& value) {
  auto& [plan, communicators] = value;
  archive(plan, communicators);
}

void fields(auto& archive, Same<Connected> auto& value) {
  auto& [plan] = value;
  archive(plan);
}

void fields(auto& archive, Same<Unloaded> auto& value) {
  auto& [plan] = value;
  archive(plan);
}

/// What travels is reduced by the lane of this process, so links do not cross.
void fields(auto& archive, Same<Reduced> auto& value) {
  auto& [plan, tag, bucket, busy_s, links] = value;
  archive(plan, tag, bucket, busy_s);
}

void fields(auto& archive, Same<DoubleDouble> auto& value) {
  auto& [high, low] = value;
  archive(high, low);
}

void fields(auto& archive, Same<TensorSum> auto& value) {
  auto& [power_sum, scale, maximum, nonfinite, nan] = value;
  archive(power_sum, scale, maximum, nonfinite, nan);
}

void fields(auto& archive, Same<NodeCells> auto& value) {
  auto& [whole, groups, layers, counted_elements] = value;
  archive(whole, groups, layers, counted_elements);
}

void fields(auto& archive, Same<RawStep> auto& value) {
  auto& [cells, class_hashes] = value;
  archive(cells, class_hashes);
}

void fields(auto& archive, Same<Finished> auto& value) {
  auto& [plan, tag, math, raw] = value;
  archive(plan, tag, math, raw);
}

void fields(auto& archive, Same<StatsRow> auto& value) {
  auto& [stamp, power_sum, power_sum_low, scale, maximum, nonfinite, nan, fingerprint] = value;
  archive(stamp, power_sum, power_sum_low, scale, maximum, nonfinite, nan, fingerprint);
}

void fields(auto& archive, Same<HeldRow> auto& value) {
  auto& [tensor, box, rank, row] = value;
  archive(tensor, box, rank, row);
}

void fields(auto& archive, Same<RowsRead> auto& value) {
  auto& [plan, tag, box_hashes, rows] = value;
  archive(plan, tag, box_hashes, rows);
}

void fields(auto& archive, Same<TensorCell> auto& value) {
  auto& [tensor, sum, elements] = value;
  archive(tensor, sum, elements);
}

void fields(auto& archive, Same<Measured> auto& value) {
  auto& [plan, tag, cells, findings] = value;
  archive(plan, tag, cells, findings);
}

void fields(auto& archive, Same<Scaled> auto& value) {
  auto& [plan, tag, clip_s] = value;
  archive(plan, tag, clip_s);
}

void fields(auto& archive, Same<Aborted> auto& value) {
  auto& [plan, tag] = value;
  archive(plan, tag);
}

void fields(auto& archive, Same<FailedRow> auto& value) {
  auto& [tensor, rank, field] = value;
  archive(tensor, rank, field);
}

void fields(auto& archive, Same<Failed> auto& value) {
  auto& [plan, tag, buffer, aborted, out_of_memory, message, row, hint, lane_lost, wire_lost, node, unsupported] =
      value;
  archive(plan, tag, buffer, aborted, out_of_memory, message, row, hint, lane_lost, wire_lost, node, unsupported);
}

}  // namespace gradsync::device
