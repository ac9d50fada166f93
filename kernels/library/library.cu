// The C interface: tables on the host, where their parts lie in the caller's device memory, and the copies around a
// pass.

#include "kernels/kernels.hpp"
#include "kernels/library/gate.hpp"
#include "kernels/library/gradsync_kernels.h"
#include "kernels/library/value_call.hpp"
#include "kernels/tables/scratch.hpp"

#include <algorithm>
#include <cuda_runtime.h>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef GRADSYNC_KERNELS_DEVICE
#define GRADSYNC_KERNELS_DEVICE "cuda"
#endif

#define GRADSYNC_EXPORT extern "C" __attribute__((visibility("default")))

using gradsync::kernels::align_up;
using gradsync::kernels::ChunkTable;
using gradsync::kernels::ClipOutcome;
using gradsync::kernels::Gate;
using gradsync::kernels::GateWords;
using gradsync::kernels::PowerSum;
using gradsync::kernels::TensorSpec;
using gradsync::kernels::ValueCall;

struct gradsync_table {
  explicit gradsync_table(const std::vector<TensorSpec>& tensors) : chunks(tensors, 1, 1) {
    const auto place = [this](std::size_t size) {
      const std::size_t offset = bytes;
      bytes = align_up(bytes + size, 256);
      return offset;
    };
    image = place(chunks.image().size());
    addresses = place(tensors.size() * sizeof(std::uint64_t));
    scratch = place(chunks.scratch_bytes());
    sums = place((tensors.size() + 1) * sizeof(PowerSum));  // and that of the group
    outcome = place(sizeof(ClipOutcome));
  }

  [[nodiscard]] std::uint32_t count() const { return chunks.shape().tensor_count; }

  ChunkTable chunks;
  std::size_t bytes = 0;
  std::size_t image = 0;
  std::size_t addresses = 0;
  std::size_t scratch = 0;
  std::size_t sums = 0;
  std::size_t outcome = 0;
  std::vector<std::uint64_t> on_device;  ///< the addresses that were copied last
  bool clean = false;                    ///< the counters on the device are zero, or will be when the stream gets there
};

inline namespace of_library {

thread_local std::string last_error;

void must(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

/// No exception crosses the interface.
template <typename Body>
int guarded(const Body& body) {
  try {
    body();
    return 0;
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return 1;
}

/// The device memory of one call.
class Memory {
 public:
  /// `staging`: where addresses lie until the stream gets there, in host memory that the device reaches. Without it the
  /// copy may wait for the stream.
  Memory(gradsync_table& table, void* memory, cudaStream_t stream, std::uint64_t* staging = nullptr)
      : table_(table), memory_(static_cast<std::byte*>(memory)), stream_(stream), staging_(staging) {
    if (memory == nullptr || reinterpret_cast<std::uintptr_t>(memory) % 256 != 0) {
      throw std::invalid_argument("memory is null or not aligned to 256 bytes");
    }
  }

  [[nodiscard]] std::byte* at(std::size_t offset) const { return memory_ + offset; }

  void upload(std::size_t offset, const void* from, std::size_t bytes, const char* what) const {
    if (bytes != 0) {
      must(cudaMemcpyAsync(at(offset), from, bytes, cudaMemcpyHostToDevice, stream_), what);
    }
  }

  /// The table for a pass over tensors at these addresses. What changed since the last pass is copied, and counters
  /// that a failed launch left are cleared.
  [[nodiscard]] gradsync::kernels::DeviceTable place(const std::uint64_t* addresses) const {
    if (addresses == nullptr && table_.count() != 0) {
      throw std::invalid_argument("addresses is null");
    }
    if (!table_.clean) {
      must(cudaMemsetAsync(at(table_.scratch), 0, table_.chunks.scratch_bytes(), stream_), "clearing the counters");
      table_.clean = true;
    }
    if (table_.on_device.size() != table_.count() ||
        !std::equal(table_.on_device.begin(), table_.on_device.end(), addresses)) {
      std::vector<void*> pointers;
      for (std::uint32_t i = 0; i < table_.count(); ++i) {
        pointers.push_back(reinterpret_cast<void*>(addresses[i]));
      }
      std::vector<std::uint64_t> list = table_.chunks.addresses(pointers);
      table_.on_device.clear();
      const std::uint64_t* from = list.data();
      if (staging_ != nullptr) {
        std::copy(list.begin(), list.end(), staging_);
        from = staging_;
      }
      upload(table_.addresses, from, list.size() * sizeof(std::uint64_t), "copying the addresses");
      table_.on_device = std::move(list);
    }
    return table_.chunks.at(at(table_.image), at(table_.addresses));
  }

 private:
  gradsync_table& table_;
  std::byte* memory_;
  cudaStream_t stream_;
  std::uint64_t* staging_;
};

void launched(gradsync_table& table, cudaError_t error, const char* what) {
  table.clean = error == cudaSuccess;
  must(error, what);
}

/// The sums of all tensors, and one strided copy of them into rows.
void measure(
    gradsync_table& table,
    const Memory& device,
    const std::uint64_t* addresses,
    const gradsync::kernels::Measurement& what,
    void* rows,
    cudaStream_t stream
) {
  const gradsync::kernels::DeviceTable placed = device.place(addresses);
  auto* const sums = reinterpret_cast<PowerSum*>(device.at(table.sums));
  launched(
      table,
      gradsync::kernels::measure(placed, what, device.at(table.scratch), sums, sums + table.count(), stream),
      "measuring"
  );
  if (table.count() != 0) {
    constexpr std::size_t kStamp = 8;  // what a row begins with
    must(
        cudaMemcpy2DAsync(
            static_cast<std::byte*>(rows) + kStamp,
            kStamp + sizeof(PowerSum),
            sums,
            sizeof(PowerSum),
            sizeof(PowerSum),
            table.count(),
            cudaMemcpyDeviceToHost,
            stream
        ),
        "copying the rows"
    );
  }
}

}  // namespace of_library

struct gradsync_gate {
  gradsync_gate(std::uint32_t count, cudaStream_t stream) {
    const std::size_t lists = align_up(sizeof(GateWords), 256);
    const std::size_t table = lists + align_up(count * sizeof(std::uint64_t), 256);
    must(cudaHostAlloc(&host, table + count * kRowBytes, cudaHostAllocMapped), "allocating memory of the host");
    auto* const bytes = static_cast<std::byte*>(host);
    words = new (bytes) GateWords{};
    addresses = reinterpret_cast<std::uint64_t*>(bytes + lists);
    rows = bytes + table;
    try {
      void* on_device = nullptr;
      must(cudaHostGetDevicePointer(&on_device, host, 0), "mapping memory of the host");
      if (on_device != host) {
        throw std::runtime_error("the device has another address for memory of the host");
      }
      wait(stream, &words->released, 0);  // a device that cannot wait says so here
      watched = std::make_unique<Gate>(*words);
    } catch (...) {
      (void)cudaFreeHost(host);
      throw;
    }
  }

  gradsync_gate(const gradsync_gate&) = delete;
  gradsync_gate& operator=(const gradsync_gate&) = delete;

  ~gradsync_gate() {
    watched.reset();
    (void)cudaFreeHost(host);  // which waits for the device
  }

  static constexpr std::size_t kRowBytes = 64;
  ValueCall wait{"cuStreamWaitValue64"};
  ValueCall write{"cuStreamWriteValue64"};
  void* host = nullptr;
  GateWords* words = nullptr;
  std::uint64_t* addresses = nullptr;
  std::byte* rows = nullptr;
  std::unique_ptr<Gate> watched;
};

GRADSYNC_EXPORT uint32_t gradsync_kernels_abi(void) { return GRADSYNC_KERNELS_ABI; }

GRADSYNC_EXPORT const char* gradsync_kernels_version(void) { return GRADSYNC_KERNELS_VERSION; }

GRADSYNC_EXPORT const char* gradsync_kernels_device(void) { return GRADSYNC_KERNELS_DEVICE; }

GRADSYNC_EXPORT const char* gradsync_kernels_error(void) { return last_error.c_str(); }

GRADSYNC_EXPORT int gradsync_kernels_check(void) {
  return guarded([] {
    int device = 0;
    int major = 0;
    int minor = 0;
    must(cudaGetDevice(&device), "finding the device");
    must(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "finding what the device can");
    must(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "finding what the device can");
    const std::string capability = "compute capability " + std::to_string(major) + "." + std::to_string(minor);
    const cudaError_t error = gradsync::kernels::find_code();
    (void)cudaGetLastError();
    if (error == cudaErrorNoKernelImageForDevice) {
      throw std::runtime_error("no code for " + capability);
    }
    must(error, capability.c_str());
  });
}

GRADSYNC_EXPORT gradsync_table* gradsync_table_create(const gradsync_tensor* tensors, uint32_t count) {
  gradsync_table* table = nullptr;
  guarded([&] {
    if (tensors == nullptr && count != 0) {
      throw std::invalid_argument("tensors is null");
    }
    std::vector<TensorSpec> specs;
    for (std::uint32_t i = 0; i < count; ++i) {
      if (tensors[i].dtype >= gradsync::kernels::kDTypes) {
        throw std::invalid_argument(
            "tensors[" + std::to_string(i) + "].dtype is " + std::to_string(tensors[i].dtype) + ", not one of 0 to 3"
        );
      }
      specs.push_back({tensors[i].count, static_cast<gradsync::kernels::DType>(tensors[i].dtype), 0, 0});
    }
    table = new gradsync_table(specs);
  });
  return table;
}

GRADSYNC_EXPORT void gradsync_table_destroy(gradsync_table* table) { delete table; }

GRADSYNC_EXPORT size_t gradsync_table_memory(const gradsync_table* table) { return table->bytes; }

GRADSYNC_EXPORT int gradsync_table_load(gradsync_table* table, void* memory, void* stream) {
  return guarded([&] {
    const Memory device(*table, memory, static_cast<cudaStream_t>(stream));
    device.upload(table->image, table->chunks.image().data(), table->chunks.image().size(), "copying the table");
    table->on_device.clear();
    table->clean = false;
  });
}

GRADSYNC_EXPORT int gradsync_measure(
    gradsync_table* table,
    void* memory,
    const uint64_t* addresses,
    double p,
    int fingerprint,
    void* rows,
    void* stream_pointer
) {
  return guarded([&] {
    if (!(p >= 1)) {
      throw std::invalid_argument("p is " + std::to_string(p) + ", not 1 or more");
    }
    if (rows == nullptr && table->count() != 0) {
      throw std::invalid_argument("rows is null");
    }
    auto* const stream = static_cast<cudaStream_t>(stream_pointer);
    measure(*table, Memory(*table, memory, stream), addresses, {p, fingerprint != 0}, rows, stream);
  });
}

GRADSYNC_EXPORT int gradsync_scale(
    gradsync_table* table, void* memory, const uint64_t* addresses, double coefficient, void* stream_pointer
) {
  return guarded([&] {
    ClipOutcome outcome{};
    outcome.multiplier = coefficient;
    outcome.multiply = 1;
    if (!gradsync::kernels::changes(outcome)) {
      return;
    }
    auto* const stream = static_cast<cudaStream_t>(stream_pointer);
    const Memory device(*table, memory, stream);
    const gradsync::kernels::DeviceTable placed = device.place(addresses);
    device.upload(table->outcome, &outcome, sizeof(outcome), "copying the coefficient");
    launched(
        *table,
        gradsync::kernels::scale(
            placed, reinterpret_cast<const ClipOutcome*>(device.at(table->outcome)), device.at(table->scratch), stream
        ),
        "multiplying"
    );
  });
}

GRADSYNC_EXPORT gradsync_gate* gradsync_gate_create(const gradsync_table* table, void* stream) {
  gradsync_gate* gate = nullptr;
  guarded([&] { gate = new gradsync_gate(table->count(), static_cast<cudaStream_t>(stream)); });
  return gate;
}

GRADSYNC_EXPORT void gradsync_gate_destroy(gradsync_gate* gate) { delete gate; }

GRADSYNC_EXPORT void* gradsync_gate_rows(gradsync_gate* gate) { return gate->rows; }

GRADSYNC_EXPORT int gradsync_defer(
    gradsync_table* table,
    void* memory,
    const uint64_t* addresses,
    double p,
    int fingerprint,
    gradsync_gate* gate,
    double patience_s,
    void* norm,
    uint32_t norm_bytes,
    void* stream_pointer
) {
  return guarded([&] {
    if (!(p >= 1) || (norm_bytes != sizeof(float) && norm_bytes != sizeof(double))) {
      throw std::invalid_argument("p is below 1, or norm_bytes neither 4 nor 8");
    }
    auto* const stream = static_cast<cudaStream_t>(stream_pointer);
    const Memory device(*table, memory, stream, gate->addresses);
    const GateWords& words = *gate->words;
    const std::uint64_t step = gate->watched->begin(std::chrono::duration<double>(patience_s));
    try {
      measure(*table, device, addresses, {p, fingerprint != 0}, gate->rows, stream);
      gate->write(stream, &words.arrived, step);
      gate->wait(stream, &words.released, step);
      device.upload(table->outcome, &words.outcome, sizeof(words.outcome), "copying the coefficient");
      const void* const found =
          norm_bytes == sizeof(float) ? static_cast<const void*>(&words.norm_as_float) : &words.norm;
      must(cudaMemcpyAsync(norm, found, norm_bytes, cudaMemcpyHostToDevice, stream), "copying the norm");
      launched(
          *table,
          gradsync::kernels::scale(
              device.place(addresses),
              reinterpret_cast<const ClipOutcome*>(device.at(table->outcome)),
              device.at(table->scratch),
              stream
          ),
          "multiplying"
      );
    } catch (...) {
      gate->watched->release(0, true, std::numeric_limits<double>::quiet_NaN());
      (void)gate->write.call(stream, &words.arrived, step);  // nothing else may say that the stream came so far
      throw;
    }
  });
}

GRADSYNC_EXPORT int gradsync_gate_await_rows(gradsync_gate* gate) { return gate->watched->await_rows() ? 0 : 1; }

GRADSYNC_EXPORT int gradsync_gate_release(gradsync_gate* gate, double coefficient, int zero, double norm) {
  return gate->watched->release(coefficient, zero != 0, norm) ? 0 : 1;
}
