#pragma once
// The bare loops of a step over memory that two ranks have in files: what `bench_echo` does for step_small.

#include <cstddef>
#include <functional>
#include <string>

namespace gradsync::floors {

/// Each file has `elements` gradients, float32, and one number more, which becomes the norm before clipping. Calling it
/// makes the step. Ends the process where a file is not as it has to be.
std::function<void()> step_over_files(std::size_t elements, const std::string& first, const std::string& second);

}  // namespace gradsync::floors
