#include "device/gpu/gpu_streams.hpp"

namespace gradsync::device {

GpuStream::GpuStream(const KernelLibrary& library)
    : library_(library), stream_(library.create_stream(), ReleaseOnGpu{&library}) {
  library_.must(stream_ == nullptr ? 1 : 0, "making a stream for collectives");
}

NcclStream* GpuStream::handle() { return static_cast<NcclStream*>(library_.stream_handle(stream_.get())); }

void GpuStream::mark() { library_.must(library_.mark_stream(stream_.get()), "marking the stream of collectives"); }

std::uint64_t GpuStream::passed() {
  std::uint64_t marks = 0;
  library_.must(library_.passed_by_stream(stream_.get(), &marks), "asking how far the stream of collectives is");
  return marks;
}

std::unique_ptr<CollectiveStream> GpuCollectiveDevice::make_stream() { return std::make_unique<GpuStream>(library_); }

std::byte* GpuCollectiveDevice::allocate(std::size_t bytes) {
  return memory_.emplace_back(allocated_on_gpu(library_, bytes, "memory for collectives")).get();
}

void GpuCollectiveDevice::use_on_this_thread() {
  library_.must(library_.open(uuid_.empty() ? nullptr : uuid_.c_str()), "opening the GPU for collectives");
}

}  // namespace gradsync::device
