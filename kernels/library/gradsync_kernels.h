#ifndef GRADSYNC_KERNELS_H
#define GRADSYNC_KERNELS_H
/* The passes of kernels/ behind a C interface, for a process that holds gradients on a GPU: libgradsync_kernels.so.
 *
 * The library owns no device memory, no thread but that of a gate, and never waits but where a function says so. It works in the
 * CUDA context and on the device that are current in the calling thread; `stream` is a cudaStream_t (null: the default
 * one). A table is used by one thread at a time; passes over one table run in the order in which they were enqueued,
 * so a caller that changes streams orders them by an event.
 *
 * Functions answer 0, or another number after a failure, which `gradsync_kernels_error` then says in words. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a caller that was compiled for another interface is refused by. It changes with every change of this file. */
#define GRADSYNC_KERNELS_ABI 3

typedef struct gradsync_table gradsync_table;

typedef struct {
  uint64_t count;    /* elements; 0 is allowed */
  uint32_t dtype;    /* 0: float32, 1: bfloat16, 2: float16, 3: float64 */
  uint32_t reserved; /* 0 */
} gradsync_tensor;

uint32_t gradsync_kernels_abi(void);

/* "0.1.0": the version of gradsync that the library was built from. */
const char* gradsync_kernels_version(void);

/* The kind of device whose memory the kernels read, as torch names it: "cuda", or "cpu" for the emulation of tests. */
const char* gradsync_kernels_device(void);

/* The last failure in this thread, in words; valid until the next call in it. */
const char* gradsync_kernels_error(void);

/* Whether the current device can run the passes: 0, or another number where the library has no code for it (a GPU older
 * than those it was compiled for, or newer, with a driver that cannot compile for it) or the driver is too old. */
int gradsync_kernels_check(void);

/* The tables of these tensors, made once for all their steps. Null after a failure. */
gradsync_table* gradsync_table_create(const gradsync_tensor* tensors, uint32_t count);
void gradsync_table_destroy(gradsync_table* table);

/* Bytes of device memory, aligned to 256, that the caller gives to the passes over this table. */
size_t gradsync_table_memory(const gradsync_table* table);

/* Copies the table to `memory` and clears the counters. Enqueues, and reads host memory before it returns. */
int gradsync_table_load(gradsync_table* table, void* memory, void* stream);

/* One read of every tensor. `addresses` has one device address per tensor, aligned to an element; 0 is a tensor that
 * is absent in this pass. `rows` is host memory of 64 bytes per tensor: bytes 8 to 63 of row i become the sums of
 * tensor i (PowerSum of kernels/power_sum.hpp: two doubles whose sum is the sum of (|g| / scale)^p, scale, maximum,
 * and as integers the values that are not finite, those of them that are NaN, and the fingerprint); the sum of a tensor
 * with such values is not finite. Bytes 0 to 7 are left alone. `p` is 1 or more, or infinite. With `fingerprint` 0 that
 * field is 0.
 *
 * Where `rows` is pageable memory the call waits for the pass; where it was registered with CUDA it only enqueues. */
int gradsync_measure(
    gradsync_table* table, void* memory, const uint64_t* addresses, double p, int fingerprint, void* rows, void* stream
);

/* Multiplies every tensor that is not absent by `coefficient`, in float32 (float64 for float64), with one rounding.
 * A coefficient of 1 launches nothing. Enqueues. */
int gradsync_scale(gradsync_table* table, void* memory, const uint64_t* addresses, double coefficient, void* stream);

/* A gate of the passes over one table: a stream waits there for a coefficient that the host stores later, and the host
 * does not wait. It has host memory that the device reaches, and one thread, which calls neither CUDA nor Python. One
 * step at a time is under way. `gradsync_defer` is of the table's thread; one other thread may call
 * `gradsync_gate_await_rows` and any `gradsync_gate_release`, neither of which calls CUDA.
 *
 * Null after a failure, where the device cannot wait for memory (cuStreamWaitValue64) for instance. */
typedef struct gradsync_gate gradsync_gate;
gradsync_gate* gradsync_gate_create(const gradsync_table* table, void* stream);

/* Releases a step with zeros, and waits for the device. */
void gradsync_gate_destroy(gradsync_gate* gate);

/* Host memory of 64 bytes per tensor: where the rows of `gradsync_measure` are, once they are awaited. */
void* gradsync_gate_rows(gradsync_gate* gate);

/* Enqueues the pass of `gradsync_measure` with its rows at the gate, a wait for the release of this step, the copy of
 * the norm (`norm_bytes` of them: 4 for a float, 8 for a double) to `norm` in device memory, and the pass of
 * `gradsync_scale`. Refused while the stream has not come to the step before.
 *
 * After `patience_s` without rows, and after as long again without a release, the step is released with zeros and a
 * norm of NaN, by the gate's thread. A failure of this function releases the step so. */
int gradsync_defer(
    gradsync_table* table,
    void* memory,
    const uint64_t* addresses,
    double p,
    int fingerprint,
    gradsync_gate* gate,
    double patience_s,
    void* norm,
    uint32_t norm_bytes,
    void* stream
);

/* Waits until the rows of the last step are there: 0. Another number where it was released before. */
int gradsync_gate_await_rows(gradsync_gate* gate);

/* Releases the step: its tensors are multiplied, or become zeros where `zero` is not 0. Another number than 0 where it
 * was released before, and this call changed nothing. */
int gradsync_gate_release(gradsync_gate* gate, double coefficient, int zero, double norm);

#ifdef __cplusplus
}
#endif

#endif
