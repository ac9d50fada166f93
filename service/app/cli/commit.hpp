#pragma once

// The commit of the sources. It is not in version.hpp because a new commit shall compile one small file only.

namespace gradsync::app {

/// 12 hexadecimal digits; "unknown" where the sources came without git and nobody gave -DGRADSYNC_COMMIT.
[[nodiscard]] const char* commit();

}  // namespace gradsync::app
