#ifndef GRADSYNC_GPU_H
#define GRADSYNC_GPU_H
/* The part of libgradsync_kernels.so that reduces buckets: for the process that has all ranks' gradients in reach, a
 * worker of the daemon. The trainers' part is gradsync_kernels.h, whose tables multiply here too.
 *
 * One device, and one thread but for `gradsync_gpu_open`. Functions wait for what the device has of theirs, unless they
 * say that they do not, and for no stream of `gradsync_stream_create`. They answer 0, or another number after a failure,
 * which `gradsync_gpu_error` then says in words. After a failure of the device itself every later call fails: end the
 * process. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a caller that was compiled for another interface is refused by. It changes with every change of this file. */
#define GRADSYNC_GPU_ABI 6

uint32_t gradsync_gpu_abi(void);

/* The last failure in this thread, in words; valid until the next call in it. */
const char* gradsync_gpu_error(void);

/* Its cudaError_t, or 0 where the failure was not one of CUDA. */
int gradsync_gpu_error_code(void);

typedef struct {
  char name[256];   /* with "MIG" where it is an instance of a GPU */
  int compute_mode; /* cudaComputeMode: 0 default, 2 prohibited, 3 exclusive to a process */
  int capability;   /* 90 for 9.0 */
  uint64_t memory_bytes;
} gradsync_gpu_description;

/* Describes the device with this UUID, or the first one where it is null. It is not opened, and need not be usable. */
int gradsync_gpu_describe(const char* uuid, gradsync_gpu_description* description);

/* Takes the device with this UUID ("GPU-" and 36 characters), or the first one where it is null, for the thread that
 * calls. */
int gradsync_gpu_open(const char* uuid);

/* Device memory, aligned to 256 bytes. CUDA waits for the whole device before it frees memory; so while something runs
 * on a stream of `gradsync_stream_create`, which may be for ever, what is given back is kept, and freed later. */
int gradsync_gpu_allocate(size_t bytes, void** address);
int gradsync_gpu_free(void* address);

/* Lets the device reach host memory: `address` is what it is called there. Whole pages, registered once. */
int gradsync_gpu_map_host(void* memory, size_t bytes, void** address);
int gradsync_gpu_unmap_host(void* memory);

/* The 64 bytes of the cudaIpcMemHandle_t of what `gradsync_gpu_allocate` gave, for another process to map. */
int gradsync_gpu_export(void* address, void* handle);

/* Maps memory that another process allocated on this device, by the 64 bytes of its cudaIpcMemHandle_t: the base of the
 * allocation, and how many bytes of it are mapped, which may be more than its owner asked for. Each call needs a close
 * of its own, which is put off as `gradsync_gpu_free` is. */
int gradsync_gpu_import(const void* handle, void** base, size_t* bytes);
int gradsync_gpu_close_imported(void* base);

/* Waits for what was enqueued by the functions of gradsync_kernels.h, on the default stream. */
int gradsync_gpu_wait(void);

/* Writes zeros to memory of the device. */
int gradsync_gpu_zero(void* address, size_t bytes);

/* Copies between memory of the device and of the host, at once. */
int gradsync_gpu_read(void* host, const void* address, size_t bytes);
int gradsync_gpu_write(void* address, const void* host, size_t bytes);

/* As `gradsync_gpu_write`, but the call does not wait: the memory of the host may be read until `gradsync_gpu_wait`, and
 * passes that begin later find what was written. */
int gradsync_gpu_send(void* address, const void* host, size_t bytes);

/* A stream beside that of the passes, for collectives: neither waits for the other. Null after a failure. It is
 * destroyed when nothing runs on it any more. */
typedef struct gradsync_stream gradsync_stream;

gradsync_stream* gradsync_stream_create(void);
void gradsync_stream_destroy(gradsync_stream* stream);

/* Its cudaStream_t, to enqueue something: from now on something counts as running on it, until it has passed the next
 * mark. */
void* gradsync_stream_handle(gradsync_stream* stream);

/* Puts a mark behind everything that was enqueued so far; does not wait. */
int gradsync_stream_mark(gradsync_stream* stream);

/* How many of its marks the stream has passed; does not wait. */
int gradsync_stream_passed(gradsync_stream* stream, uint64_t* marks);

/* The sums of a plan (kernels/tables/reduce_table.hpp says what each field means). Lists are read, not kept. */
typedef struct {
  uint64_t source;
  uint64_t first;
  uint64_t distance;
  uint32_t run;
  uint32_t runs;
  uint32_t part;
  uint32_t reserved; /* 0 */
} gradsync_reduce_chunk;

typedef struct {
  uint32_t first_source; /* positions in `members`, which has places */
  uint32_t sources;
  uint32_t first_destination;
  uint32_t destinations;
} gradsync_reduce_sum;

typedef struct {
  uint32_t first_sum; /* position in `sums` */
  uint32_t sums;
} gradsync_reduce_part;

typedef struct {
  double divisor;
  uint32_t dtype;   /* of results; as in gradsync_tensor */
  uint32_t sources; /* the dtype of inputs: the same, or one of both is float32 and the other has 16 bits */
  uint32_t first_chunk;
  uint32_t chunks;
  uint32_t minus_zeros; /* 1: -0.0 and not 0.0 is written where nobody contributed */
  uint32_t reserved;    /* 0 */
} gradsync_reduce_bucket;

typedef struct {
  const gradsync_reduce_part* parts;
  const gradsync_reduce_sum* sums;
  const uint32_t* members;
  const gradsync_reduce_chunk* chunks;
  const gradsync_reduce_bucket* buckets;
  uint32_t places;
  uint32_t part_count;
  uint32_t sum_count;
  uint32_t member_count;
  uint32_t chunk_count;
  uint32_t bucket_count;
} gradsync_reduce_plan;

/* The statistics of a chunk: ReducedChunk of kernels/tables/reduce_table.hpp. */
typedef struct {
  double high;
  double low;
  double maximum;
  uint32_t nonfinite;
  uint32_t nan;
  uint32_t differs;
  uint32_t reserved;
} gradsync_reduced_chunk;

typedef struct gradsync_reduction gradsync_reduction;

/* Makes the tables and puts them into device memory of their own. Null after a failure. */
gradsync_reduction* gradsync_reduction_create(const gradsync_reduce_plan* plan);
void gradsync_reduction_destroy(gradsync_reduction* reduction);

/* What a pass found beside the statistics; each list is written only where `found` says so. */
enum { GRADSYNC_FOUND_NONFINITE = 1, GRADSYNC_FOUND_DIFFERENT = 2 };

typedef struct {
  gradsync_reduced_chunk* chunks; /* of the bucket, by chunk */
  uint64_t* nonfinite;            /* by place: values of its input that are not finite */
  uint32_t* differs;              /* by sum */
  uint32_t found;
} gradsync_reduce_result;

/* Reduces a bucket. `addresses` has one device address per place, 0 for an input of a rank that contributed nothing and
 * for an output that is not written; those of other buckets are not read. `p` is 1 or more, or infinite. */
int gradsync_reduce(
    gradsync_reduction* reduction,
    const uint64_t* addresses,
    uint32_t bucket,
    double p,
    int compare,
    gradsync_reduce_result* result
);

/* Takes the sums of a bucket's chunks again, divided by `scales` (one per chunk of the bucket; 0 leaves a chunk alone).
 * Only `high` and `low` of `chunks` are written. */
int gradsync_sum_powers(
    gradsync_reduction* reduction,
    const uint64_t* addresses,
    uint32_t bucket,
    double p,
    const double* scales,
    gradsync_reduced_chunk* chunks
);

#ifdef __cplusplus
}
#endif

#endif
