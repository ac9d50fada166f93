#pragma once
// What every worker with a GPU can do: memory with names, exported and opened by CUDA IPC, filled and checked by
// kernels. Programs add their own handlers. One thread.

#include "gpu/experiments/cuda_calls.hpp"
#include "gpu/experiments/workers/worker.hpp"

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gradsync::experiments {

class DeviceWorker {
 public:
  /// `this` must outlive the handlers: start allocate export open release fill count memory.
  [[nodiscard]] Handlers handlers();

  /// The address of the block that the message names in `key`, plus its field `key`_offset where it is there.
  [[nodiscard]] CUdeviceptr address(const Message& message, const std::string& key) const;

  [[nodiscard]] const Stream& stream() const { return *stream_; }

  /// For what must never queue behind a wait.
  [[nodiscard]] const Stream& free_stream() const { return *free_stream_; }

  /// One of 64 words of 64 bits of this process, in pages of their own.
  [[nodiscard]] CUdeviceptr word(int which) const;
  [[nodiscard]] std::uint64_t read_word(CUdeviceptr at) const;

  /// Room for `count` 64-bit words of this process, zeroed.
  [[nodiscard]] CUdeviceptr words(std::size_t count);

  /// Times that kernels left in such words, in ns, without the upper digits, so that a double keeps them whole; every
  /// process drops the same ones.
  [[nodiscard]] std::vector<double> read_stamps(CUdeviceptr at, std::size_t count) const;

 private:
  struct Block {
    CUdeviceptr base;
    bool imported;
  };

  Message start(const Message& message);
  Message allocate(const Message& message);
  Message export_block(const Message& message);
  Message open_block(const Message& message);
  Message release(const Message& message);

  std::map<std::string, Block> blocks_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Stream> free_stream_;
  CUdeviceptr scratch_ = 0;
};

using Environment = std::vector<std::pair<std::string, std::string>>;

/// Environment of a worker whose kernels are all loaded before a stream can wait.
Environment eager_environment();

/// Without what cuBLAS and NCCL would take long to load in full; their own warm-up loads what they use.
Environment lazy_environment();

/// The same with one setting changed or added.
Environment with(Environment environment, const std::string& key, const std::string& value);

/// Contexts for workers that were just made, at the same time, because each takes long.
void start_all(std::initializer_list<Worker*> workers);

/// A worker that has its context. Streams of lower priority numbers go first; CUDA limits them to what the device has.
Worker started(WorkerOptions options, int priority = 0);

/// Exports `block` of one worker and opens it in another under the same name; the answer of the opening.
Message share(Worker& owner, Worker& importer, const std::string& block, double seconds = 20);

}  // namespace gradsync::experiments
