#include "gpu/experiments/workers/device_worker.hpp"

#include "gpu/experiments/loads/probe_kernels.hpp"

#include <stdexcept>

namespace gradsync::experiments {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{1} << 20;
constexpr std::size_t kWordsOffset = std::size_t{512} << 10;

Message memory_message() {
  std::size_t free = 0;
  std::size_t total = 0;
  must(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return Message("ok").set("free", free).set("total", total);
}

}  // namespace

Message DeviceWorker::start(const Message& message) {
  const double began = now_us();
  must(cudaSetDevice(0), "cudaSetDevice");
  must(cudaFree(nullptr), "cudaFree(0)");
  const double context_us = now_us() - began;
  const int priority = message.has("priority") ? static_cast<int>(message.integer("priority")) : 0;
  stream_ = std::make_unique<Stream>(priority);
  free_stream_ = std::make_unique<Stream>(priority);
  must(driver().memory_allocate(&scratch_, kScratchBytes), "cuMemAlloc");
  stream_->zero(scratch_, kScratchBytes);
  must(warm_up_kernels(scratch_, stream_->get()), "a first launch of every kernel");
  stream_->zero(scratch_, kScratchBytes);
  stream_->synchronize();
  return memory_message()
      .set("context_ms", context_us * 1e-3)
      .set("start_ms", (now_us() - began) * 1e-3)
      .set("mps", attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0);
}

CUdeviceptr DeviceWorker::address(const Message& message, const std::string& key) const {
  const auto found = blocks_.find(message.text(key));
  if (found == blocks_.end()) {
    throw std::runtime_error("no block '" + message.text(key) + "'");
  }
  const std::string offset = key + "_offset";
  return found->second.base + (message.has(offset) ? message.size(offset) : 0);
}

CUdeviceptr DeviceWorker::word(int which) const {
  return scratch_ + kWordsOffset + 4096 * static_cast<unsigned>(which);
}

std::uint64_t DeviceWorker::read_word(CUdeviceptr at) const {
  std::uint64_t value = 0;
  free_stream_->copy_to_host(&value, at, sizeof(value));
  return value;
}

CUdeviceptr DeviceWorker::words(std::size_t count) {
  CUdeviceptr at = 0;
  must(driver().memory_allocate(&at, count * 8), "cuMemAlloc");
  free_stream_->zero(at, count * 8);
  free_stream_->synchronize();
  return at;
}

std::vector<double> DeviceWorker::read_stamps(CUdeviceptr at, std::size_t count) const {
  std::vector<std::uint64_t> values(count);
  free_stream_->copy_to_host(values.data(), at, count * 8);
  std::vector<double> times;
  times.reserve(count);
  for (const std::uint64_t value : values) {
    times.push_back(static_cast<double>(value % 1'000'000'000'000'000));
  }
  return times;
}

Message DeviceWorker::allocate(const Message& message) {
  CUdeviceptr base = 0;
  const double began = now_us();
  must(driver().memory_allocate(&base, message.size("bytes")), "cuMemAlloc");
  const double us = now_us() - began;
  blocks_[message.text("block")] = {base, false};
  return Message("ok").set("us", us).set("address", static_cast<std::int64_t>(base));
}

Message DeviceWorker::export_block(const Message& message) {
  const CUdeviceptr at = address(message, "block");
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  CUipcMemHandle handle{};
  const double began = now_us();
  must(driver().address_range(&base, &bytes, at), "cuMemGetAddressRange");
  const double range_us = now_us() - began;
  must(driver().ipc_get(&handle, at), "cuIpcGetMemHandle");
  return Message("ok")
      .set("handle", hex(&handle, sizeof(handle)))
      .set("offset", static_cast<std::size_t>(at - base))
      .set("allocation_bytes", bytes)
      .set("range_us", range_us)
      .set("get_us", now_us() - began - range_us);
}

Message DeviceWorker::open_block(const Message& message) {
  CUipcMemHandle handle{};
  unhex(message.text("handle"), &handle, sizeof(handle));
  CUdeviceptr base = 0;
  const double began = now_us();
  must(driver().ipc_open(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), "cuIpcOpenMemHandle");
  const double us = now_us() - began;
  blocks_[message.text("block")] = {base, true};
  CUdeviceptr range_base = 0;
  std::size_t bytes = 0;
  const CUresult range = driver().address_range(&range_base, &bytes, base);
  return Message("ok")
      .set("open_us", us)
      .set("mapped_bytes", bytes)
      .set("range_result", range == CUDA_SUCCESS ? "CUDA_SUCCESS" : name_of(range))
      .set("base_returned", range_base == base)
      .set("address", static_cast<std::int64_t>(base));
}

Message DeviceWorker::release(const Message& message) {
  const auto found = blocks_.find(message.text("block"));
  if (found == blocks_.end()) {
    throw std::runtime_error("no block '" + message.text("block") + "'");
  }
  const Block block = found->second;
  const double began = now_us();
  if (block.imported) {
    must(driver().ipc_close(block.base), "cuIpcCloseMemHandle");
  } else {
    must(driver().memory_free(block.base), "cuMemFree");
  }
  blocks_.erase(found);
  return Message("ok").set("us", now_us() - began);
}

Handlers DeviceWorker::handlers() {
  Handlers all;
  all["start"] = [this](const Message& message) { return start(message); };
  all["allocate"] = [this](const Message& message) { return allocate(message); };
  all["export"] = [this](const Message& message) { return export_block(message); };
  all["open"] = [this](const Message& message) { return open_block(message); };
  all["release"] = [this](const Message& message) { return release(message); };
  all["fill"] = [this](const Message& message) {
    const auto value = static_cast<std::uint32_t>(message.integer("value"));
    must(fill_words(address(message, "block"), message.size("words"), value, stream_->get()), "fill_words");
    stream_->synchronize();
    return Message("ok");
  };
  all["count"] = [this](const Message& message) {
    const auto value = static_cast<std::uint32_t>(message.integer("value"));
    stream_->zero(word(0), 8);
    must(
        count_different_words(address(message, "block"), message.size("words"), value, word(0), stream_->get()),
        "count_different_words"
    );
    stream_->synchronize();
    return Message("ok").set("different", static_cast<std::int64_t>(read_word(word(0))));
  };
  all["memory"] = [](const Message&) { return memory_message(); };
  return all;
}

Environment eager_environment() {
  return {{"CUDA_MODULE_LOADING", "EAGER"}, {"CUDA_LAUNCH_BLOCKING", "0"}, {"CUDA_DEVICE_MAX_CONNECTIONS", "32"}};
}

Environment with(Environment environment, const std::string& key, const std::string& value) {
  std::erase_if(environment, [&](const auto& entry) { return entry.first == key; });
  environment.emplace_back(key, value);
  return environment;
}

Environment lazy_environment() { return with(eager_environment(), "CUDA_MODULE_LOADING", "LAZY"); }

void start_all(std::initializer_list<Worker*> workers) {
  for (Worker* worker : workers) {
    if (!worker->refused().empty()) {
      throw std::runtime_error("a worker could not be set apart: " + worker->refused());
    }
    worker->send(Message("start"));
  }
  for (Worker* worker : workers) {
    (void)worker->reply(40);
  }
}

Worker started(WorkerOptions options, int priority) {
  if (options.environment.empty()) {
    options.environment = eager_environment();
  }
  Worker worker(options);
  (void)worker.call(Message("start").set("priority", priority), 40);
  return worker;
}

Message share(Worker& owner, Worker& importer, const std::string& block, double seconds) {
  const Message exported = owner.call(Message("export").set("block", block), seconds);
  return importer.call(Message("open").set("block", block).set("handle", exported.text("handle")), seconds);
}

}  // namespace gradsync::experiments
