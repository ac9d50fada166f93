#pragma once
// The GPUs of a world: how many each node has, on which of them ranks are, and memory there by the handles that name
// it.

#include "sim/memory.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

namespace gradsync::sim {

class Gpus {
 public:
  struct Memory {
    std::weak_ptr<const Mapping> memory;  ///< gone: its process has ended
    std::string gpu;                      ///< on which it lies
  };

  /// Nodes have one to three in most worlds, and two each in some.
  Gpus(std::uint64_t seed, bool any) : seed_(seed), any_(any) {}

  /// That of a rank; empty: its gradients lie in memory of the CPU.
  [[nodiscard]] std::string of(std::size_t node, std::int64_t rank, std::int64_t ranks_here) const;

  /// The number of the node that has the GPU of which a text speaks first; -1: it speaks of none.
  [[nodiscard]] static std::int64_t node_in(std::string_view text);

  /// The handle of memory on a GPU.
  [[nodiscard]] std::string share(const std::shared_ptr<const Mapping>& memory, std::string gpu);

  [[nodiscard]] const Memory& find(const std::string& handle) const { return memories_.at(handle); }

 private:
  [[nodiscard]] std::int64_t count_of(std::size_t node) const;

  std::uint64_t seed_;
  bool any_;
  std::map<std::string, Memory> memories_;
};

}  // namespace gradsync::sim
