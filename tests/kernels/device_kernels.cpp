#include "kernels/device_kernels.hpp"

#include "kernels/kernels.hpp"
#include "kernels/tables/scratch.hpp"

namespace gradsync::kernels {

namespace {

std::vector<DeviceMemory> put(const std::vector<HostTensor>& tensors) {
  std::vector<DeviceMemory> memory;
  for (const HostTensor& tensor : tensors) {
    memory.emplace_back(tensor.offset + tensor.bytes.size());
    memory.back().upload(tensor.bytes.data(), tensor.bytes.size(), tensor.offset);
  }
  return memory;
}

std::vector<PlacedTensor> placed(const std::vector<HostTensor>& tensors, const std::vector<DeviceMemory>& memory) {
  std::vector<PlacedTensor> placed;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const HostTensor& tensor = tensors[i];
    placed.push_back(
        {memory[i].get() + tensor.offset, tensor.count(), tensor.dtype, tensor.norm_group, tensor.clip_group}
    );
  }
  return placed;
}

DeviceMemory image_of(std::span<const std::byte> image) {
  DeviceMemory memory(image.size());
  memory.upload(image.data(), image.size());
  return memory;
}

class DeviceKernels final : public Implementation {
 public:
  Measured measure(const std::vector<HostTensor>& tensors, double p, bool fingerprint) override {
    const DeviceTensors device(tensors);
    const DeviceTable table = device.table();
    const DeviceMemory of_tensors(table.tensor_count * sizeof(PowerSum));
    const DeviceMemory of_groups(table.norm_groups * sizeof(PowerSum));
    must(
        kernels::measure(
            table,
            {p, fingerprint},
            device.scratch(),
            reinterpret_cast<PowerSum*>(of_tensors.get()),
            reinterpret_cast<PowerSum*>(of_groups.get()),
            nullptr
        ),
        "measure"
    );
    must(cudaStreamSynchronize(nullptr), "measure");
    if (!device.counters_are_zero()) {
      throw std::runtime_error("measure left a counter that is not zero");
    }
    return {downloaded<PowerSum>(of_tensors, table.tensor_count), downloaded<PowerSum>(of_groups, table.norm_groups)};
  }

  std::vector<ClipOutcome> decide(
      const std::vector<PowerSum>& sums, const std::vector<arithmetic::ClipLimit>& rules, double p, double scale
  ) override {
    const DeviceMemory device_sums = uploaded(sums);
    const DeviceMemory device_rules = uploaded(rules);
    const DeviceMemory outcomes(rules.size() * sizeof(ClipOutcome));
    must(
        kernels::decide(
            reinterpret_cast<const PowerSum*>(device_sums.get()),
            static_cast<std::uint32_t>(rules.empty() ? 0 : sums.size() / rules.size()),
            reinterpret_cast<const arithmetic::ClipLimit*>(device_rules.get()),
            static_cast<std::uint32_t>(rules.size()),
            p,
            scale,
            reinterpret_cast<ClipOutcome*>(outcomes.get()),
            nullptr
        ),
        "decide"
    );
    return downloaded<ClipOutcome>(outcomes, rules.size());
  }

  void scale(std::vector<HostTensor>& tensors, const std::vector<ClipOutcome>& outcomes) override {
    const DeviceTensors device(tensors);
    const DeviceMemory device_outcomes = uploaded(outcomes);
    must(
        kernels::scale(
            device.table(), reinterpret_cast<const ClipOutcome*>(device_outcomes.get()), device.scratch(), nullptr
        ),
        "scale"
    );
    must(cudaStreamSynchronize(nullptr), "scale");
    if (!device.counters_are_zero()) {
      throw std::runtime_error("scale left a counter that is not zero");
    }
    device.read_back(tensors);
  }

  void copy(std::vector<HostBuffer>& buffers, const MakeParts& make_parts) override {
    std::vector<DeviceMemory> memory;
    std::vector<void*> addresses;
    for (const HostBuffer& buffer : buffers) {
      memory.emplace_back(buffer.offset + buffer.bytes.size());
      memory.back().upload(buffer.bytes.data(), buffer.bytes.size(), buffer.offset);
      addresses.push_back(memory.back().get() + buffer.offset);
    }
    const CopyTable table(make_parts(addresses));
    const DeviceMemory image = image_of(table.image());
    must(kernels::copy(table.at(image.get()), nullptr), "copy");
    must(cudaStreamSynchronize(nullptr), "copy");
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      memory[i].download(buffers[i].bytes.data(), buffers[i].bytes.size(), buffers[i].offset);
    }
  }
};

}  // namespace

DeviceTensors::DeviceTensors(const std::vector<HostTensor>& tensors)
    : memory_(put(tensors)),
      table_(
          placed(tensors, memory_),
          group_count(tensors, &HostTensor::norm_group),
          group_count(tensors, &HostTensor::clip_group)
      ) {}

void DeviceTensors::read_back(std::vector<HostTensor>& tensors) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    memory_[i].download(tensors[i].bytes.data(), tensors[i].bytes.size(), tensors[i].offset);
  }
}

bool DeviceTensors::counters_are_zero() const {
  for (const std::byte byte : downloaded<std::byte>(table_.scratch(), sizeof(PassCounters))) {
    if (byte != std::byte{0}) {
      return false;
    }
  }
  return true;
}

std::unique_ptr<Implementation> make_device_kernels() { return std::make_unique<DeviceKernels>(); }

std::string missing_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    return std::string("no CUDA device: ") + cudaGetErrorString(error);
  }
  return count == 0 ? "no CUDA device" : "";
}

}  // namespace gradsync::kernels
