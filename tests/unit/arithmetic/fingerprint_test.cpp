// The fingerprint against a table of bytes; the clients' test reads the same table (tests/python/torch).

#include "arithmetic/fingerprint.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

namespace gradsync::arithmetic {
namespace {

struct FingerprintRow {
  std::string_view hexadecimal;
  std::uint64_t fingerprint;
};

constexpr FingerprintRow kTable[] = {
#include "fingerprint_table.inc"
};

std::string bytes_of(std::string_view hexadecimal) {
  std::string bytes;
  for (std::size_t at = 0; at < hexadecimal.size(); at += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hexadecimal.substr(at, 2)), nullptr, 16)));
  }
  return bytes;
}

std::uint64_t fingerprint_of(const std::string& bytes) {
  std::uint64_t sum = fingerprint_length(bytes.size());
  for (std::size_t first = 0; first < bytes.size(); first += 16) {
    std::uint32_t words[4] = {};
    std::memcpy(words, bytes.data() + first, std::min<std::size_t>(16, bytes.size() - first));
    sum += fingerprint_vector(words[0], words[1], words[2], words[3], first / 16);
  }
  return sum;
}

TEST(Fingerprint, is_that_of_the_table) {
  for (const FingerprintRow& row : kTable) {
    EXPECT_EQ(fingerprint_of(bytes_of(row.hexadecimal)), row.fingerprint) << row.hexadecimal;
  }
}

TEST(Fingerprint, knows_places_lengths_and_padding) {
  const std::string bytes(40, '\1');
  std::string swapped = bytes;
  swapped[3] = '\2';
  std::string elsewhere = bytes;
  elsewhere[35] = '\2';
  EXPECT_NE(fingerprint_of(swapped), fingerprint_of(elsewhere));
  EXPECT_NE(fingerprint_of(bytes + std::string(2, '\0')), fingerprint_of(bytes));
  EXPECT_NE(fingerprint_of(std::string(32, '\0')), fingerprint_of(std::string(48, '\0')));
}

}  // namespace
}  // namespace gradsync::arithmetic
