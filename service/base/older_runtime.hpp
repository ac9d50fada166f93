#pragma once
// For files that call std::condition_variable::wait, and nothing else. GCC 12 gave that function a new symbol version,
// GLIBCXX_3.4.30, which the runtime of GCC 11 lacks (RHEL 9). What changed is only that `wait` is no longer noexcept,
// for threads that are cancelled; we cancel none. The function under its first version is in every runtime since
// GCC 4.4, and this line binds the calls of this file to it. Without it the wheel would not start there.

#if defined(__GLIBCXX__) && (defined(__x86_64__) || defined(__aarch64__))
asm(".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
#endif
