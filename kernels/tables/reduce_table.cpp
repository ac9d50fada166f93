#include "kernels/tables/reduce_table.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>

namespace gradsync::kernels {

namespace {

constexpr std::uint64_t kMostElements = std::numeric_limits<std::uint64_t>::max() / 16;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

std::string entry(const char* list, std::size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

std::string text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

const char* name_of(DType dtype) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "float64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/// Widens the one so that it has the other.
void take_in(PlaceRange& range, PlaceRange other) {
  if (other.end != 0) {
    range.begin = range.end == 0 ? other.begin : std::min(range.begin, other.begin);
    range.end = std::max(range.end, other.end);
  }
}

PlaceRange places_in(const ReducePart& part) {
  PlaceRange named;
  for (const ReduceSum& sum : part.sums) {
    for (const std::vector<std::uint32_t>* members : {&sum.sources, &sum.destinations}) {
      for (const std::uint32_t place : *members) {
        take_in(named, {place, place + 1});
      }
    }
  }
  return named;
}

void check_members(const std::vector<std::uint32_t>& members, std::uint32_t places, const std::string& name) {
  if (members.empty()) {
    refuse(name + " is empty");
  }
  for (const std::uint32_t member : members) {
    if (member >= places) {
      refuse(name + " names place " + std::to_string(member) + ", there are " + std::to_string(places));
    }
  }
}

void check_chunk(const ReduceChunk& chunk, std::size_t parts, const std::string& name) {
  if (chunk.part >= parts) {
    refuse(name + ".part is " + std::to_string(chunk.part) + ", there are " + std::to_string(parts) + " parts");
  }
  if (chunk.run == 0 || chunk.runs == 0) {
    refuse(name + (chunk.run == 0 ? ".run" : ".runs") + " is 0");
  }
  const std::uint64_t elements = std::uint64_t{chunk.run} * chunk.runs;
  if (elements > std::numeric_limits<std::uint32_t>::max()) {
    refuse(name + " has " + std::to_string(elements) + " elements: cut it smaller");
  }
  if (chunk.runs > 1 && chunk.distance < chunk.run) {
    refuse(name + ".distance is " + std::to_string(chunk.distance) + ": runs would overlap");
  }
  const std::uint64_t reach = chunk.runs == 1 ? 0 : chunk.distance;
  if (std::max({chunk.source, chunk.first, reach}) > kMostElements / chunk.runs) {
    refuse(name + " lies beyond what memory can hold");
  }
}

void check_bucket(const ReduceBucket& bucket, std::size_t chunks, const std::string& name) {
  if (bucket.first_chunk > chunks || bucket.chunks > chunks - bucket.first_chunk) {
    refuse(
        name + " has chunks " + std::to_string(bucket.first_chunk) + " to " +
        std::to_string(std::uint64_t{bucket.first_chunk} + bucket.chunks) + ", there are " + std::to_string(chunks)
    );
  }
  const bool wide = bucket.dtype == DType::Float64;
  const double smallest = wide ? std::numeric_limits<double>::denorm_min() : std::numeric_limits<float>::denorm_min();
  const double largest = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
  if (!(bucket.divisor >= smallest && bucket.divisor <= largest)) {
    refuse(
        name + ".divisor is " + text(bucket.divisor) + ", it must be positive and finite in the type of the division"
    );
  }
  const DType from = bucket.sources.value_or(bucket.dtype);
  const bool between =
      from == DType::Float32 ? size_of(bucket.dtype) == 2 : bucket.dtype == DType::Float32 && size_of(from) == 2;
  if (from != bucket.dtype && !between) {
    refuse(
        name + ".sources is " + name_of(from) + " and its dtype " + name_of(bucket.dtype) +
        ": where they differ, one is float32 and the other has 16 bits"
    );
  }
}

template <typename T>
void append(std::vector<std::byte>& image, const std::vector<T>& entries) {
  const std::size_t at = (image.size() + 255) / 256 * 256;
  image.resize(at + entries.size() * sizeof(T));
  if (!entries.empty()) {
    std::memcpy(image.data() + at, entries.data(), entries.size() * sizeof(T));
  }
}

}  // namespace

ReduceTable::ReduceTable(
    std::uint32_t places,
    std::span<const ReducePart> parts,
    std::span<const ReduceChunk> chunks,
    std::span<const ReduceBucket> buckets
)
    : places_(places),
      chunks_(static_cast<std::uint32_t>(chunks.size())),
      first_sum_{0},
      buckets_(buckets.begin(), buckets.end()) {
  if (chunks.size() > std::numeric_limits<std::int32_t>::max()) {
    refuse("there are " + std::to_string(chunks.size()) + " chunks, 2^31 is the most");
  }
  std::vector<SumEntry> sums;
  std::vector<std::uint32_t> members;
  const auto add_members = [&members](const std::vector<std::uint32_t>& list) {
    members.insert(members.end(), list.begin(), list.end());
    return static_cast<std::uint32_t>(members.size() - list.size());
  };
  for (std::size_t part = 0; part < parts.size(); ++part) {
    for (std::size_t sum = 0; sum < parts[part].sums.size(); ++sum) {
      const ReduceSum& spec = parts[part].sums[sum];
      const std::string name = entry("parts", part) + "." + entry("sums", sum);
      check_members(spec.sources, places, name + ".sources");
      check_members(spec.destinations, places, name + ".destinations");
      const std::uint32_t first_source = add_members(spec.sources);
      const std::uint32_t first_destination = add_members(spec.destinations);
      sums.push_back(
          {first_source,
           static_cast<std::uint32_t>(spec.sources.size()),
           first_destination,
           static_cast<std::uint32_t>(spec.destinations.size())}
      );
    }
    if (members.size() > std::numeric_limits<std::uint32_t>::max()) {
      refuse("the sums have more than 2^32 sources and destinations");
    }
    first_sum_.push_back(static_cast<std::uint32_t>(sums.size()));
  }
  std::vector<PlaceRange> of_part;
  for (const ReducePart& part : parts) {
    of_part.push_back(places_in(part));
  }
  std::vector<ReduceItem> items;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const ReduceChunk& chunk = chunks[i];
    check_chunk(chunk, parts.size(), entry("chunks", i));
    const std::uint32_t first = first_sum_[chunk.part];
    items.push_back(
        {chunk.source,
         chunk.first,
         chunk.runs == 1 ? 0 : chunk.distance,
         chunk.run,
         chunk.runs,
         first,
         first_sum_[chunk.part + 1] - first}
    );
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    check_bucket(buckets[i], chunks.size(), entry("buckets", i));
    std::uint32_t most = 0;
    PlaceRange named;
    for (std::uint32_t at = 0; at < buckets[i].chunks; ++at) {
      most = std::max(most, items[buckets[i].first_chunk + at].sums);
      take_in(named, of_part[chunks[buckets[i].first_chunk + at].part]);
    }
    most_sums_.push_back(most);
    places_of_.push_back(named);
  }
  append(image_, items);
  append(image_, sums);
  sums_offset_ = image_.size() - sums.size() * sizeof(SumEntry);
  append(image_, members);
  members_offset_ = image_.size() - members.size() * sizeof(std::uint32_t);
}

DeviceReduceTable ReduceTable::at(const void* image) const {
  const auto* base = static_cast<const std::byte*>(image);
  return {
      reinterpret_cast<const ReduceItem*>(base),
      reinterpret_cast<const SumEntry*>(base + sums_offset_),
      reinterpret_cast<const std::uint32_t*>(base + members_offset_)};
}

}  // namespace gradsync::kernels
