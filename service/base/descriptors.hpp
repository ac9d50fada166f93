#pragma once

// How many descriptors the process may have open. Some are kept back, so that a daemon whose clients use up the others
// still answers probes and can say why it refuses.

namespace gradsync {

/// Raises the soft limit to the hard one, to 65,536 at most. Child processes inherit it, and may use select(): start
/// them before.
void raise_descriptor_limit();

/// Whether this descriptor is one of those kept back. The system hands out the lowest number that is free, so that a
/// high one says how many are open at least.
[[nodiscard]] bool is_kept_back(int fd);

}  // namespace gradsync
