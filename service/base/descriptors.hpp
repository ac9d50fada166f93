#pragma once

#include "base/error.hpp"

#include <string>

// How many descriptors the process may have open. Some are kept back, so that a daemon whose clients use up the others
// still answers probes and can say why it refuses.

namespace gradsync {

/// Raises the soft limit to the hard one, to 65,536 at most. Child processes inherit it, and may use select(): start
/// them before.
void raise_descriptor_limit();

/// Whether this descriptor is one of those kept back. The system hands out the lowest number that is free, so that a
/// high one says how many are open at least.
[[nodiscard]] bool is_kept_back(int fd);

/// LimitExceeded: none is left `for_what` ("for an arena"; may be empty). Names the limit and how many are kept back.
[[nodiscard]] Error no_descriptors_left(const std::string& for_what = {});

}  // namespace gradsync
