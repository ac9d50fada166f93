#include "base/descriptors.hpp"

#include <fmt/format.h>

#include <sys/resource.h>

#include <algorithm>

namespace gradsync {

namespace {

constexpr rlim_t kMost = 65'536;
constexpr rlim_t kKeptBack = 16;

rlim_t kept_back(rlim_t limit) { return std::min(kKeptBack, limit / 4); }

rlimit descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    limit = {1024, 1024};  // what Linux begins with
  }
  return limit;
}

}  // namespace

void raise_descriptor_limit() {
  rlimit limit = descriptor_limit();
  limit.rlim_cur = std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost));
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

bool is_kept_back(int fd) {
  const rlim_t limit = descriptor_limit().rlim_cur;
  return fd >= 0 && static_cast<rlim_t>(fd) >= limit - kept_back(limit);
}

Error no_descriptors_left(const std::string& for_what) {
  const rlim_t limit = descriptor_limit().rlim_cur;
  return make_error(
      ErrorCode::LimitExceeded,
      fmt::format(
          "the daemon has no file descriptors left{}{}: the limit is {}, of which {} are kept back for probes",
          for_what.empty() ? "" : " ",
          for_what,
          limit,
          kept_back(limit)
      ),
      "release what is not used, or raise the hard limit of open files (LimitNOFILE, ulimit -Hn) of the daemon"
  );
}

}  // namespace gradsync
