#pragma once
// The samples of all kinds as JSON, to be changed and refused.

#include "peer_samples.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/peer/peer_codec.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradsync::rpc {

struct PeerSample {
  Json text;
  bool to_member = false;
};

template <typename Direction>
void add_samples(const std::vector<Direction>& messages, std::vector<PeerSample>& samples) {
  for (const Direction& message : messages) {
    samples.push_back({Json::parse(*encode_peer(message)), std::is_same_v<Direction, engine::ToMember>});
  }
}

inline std::vector<PeerSample> all_samples() {
  std::vector<PeerSample> samples;
  add_samples(samples_to_coordinator(), samples);
  add_samples(samples_to_member(), samples);
  return samples;
}

/// The richest sample of a kind: the one with the longest text.
inline PeerSample sample_of(const std::string& method) {
  PeerSample found;
  for (PeerSample& sample : all_samples()) {
    if (sample.text["method"] == method && sample.text.dump().size() > found.text.dump().size()) {
      found = std::move(sample);
    }
  }
  EXPECT_FALSE(found.text.is_null()) << method;
  return found;
}

/// Empty where the text is taken.
inline std::optional<Error> refusal_of(const std::string& text, bool to_member) {
  PeerReader reader;
  if (to_member) {
    const auto read = reader.to_member(text);
    return read ? std::nullopt : std::optional(read.error());
  }
  const auto read = reader.to_coordinator(text);
  return read ? std::nullopt : std::optional(read.error());
}

}  // namespace gradsync::rpc
