#pragma once

#include <pthread.h>
#include <string>

namespace gradsync {

/// Names the calling thread; cut to the 15 bytes that the kernel keeps.
inline void name_this_thread(const std::string& name) {
  ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
}

}  // namespace gradsync
