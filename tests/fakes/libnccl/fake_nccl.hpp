#pragma once
// What the fake libnccl.so.2 has beside NCCL's own functions, found by dlsym. It behaves as NCCL 2.28.9 does where that
// hurts: an abort leaves half-written buffers behind events that say success; one that is not in a group with the other
// communicators of its device waits for their kernels; an id serves once. What it does *not* do is hang silently where
// members call different operations: it says so, as an error. Calls that NCCL forbids are kept as violations.

extern "C" {

/// The faults from now on (fake_script.hpp); null: those of $GRADSYNC_FAKE_NCCL. Throws.
void gradsync_fake_nccl_script(const char* script);

/// The device of the calling thread, from now on; 0 at first. Ranks that are threads have one each.
void gradsync_fake_nccl_device(int device);

/// One line for each call that NCCL forbids; valid until the next call.
const char* gradsync_fake_nccl_violations();

/// Ids that this process made and that not all members came to. Each costs a real NCCL a thread and a socket.
int gradsync_fake_nccl_open_ids();

/// Communicators that were made here and not aborted.
int gradsync_fake_nccl_open();

/// Ends what hangs for ever, forgets violations and faults.
void gradsync_fake_nccl_reset();

}  // extern "C"
