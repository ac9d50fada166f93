#include "kernels/reference.hpp"

#include "arithmetic/fingerprint.hpp"
#include "arithmetic/half.hpp"

#include <cmath>
#include <cstring>

namespace gradsync::kernels {

namespace {

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

double read_element(DType dtype, const std::byte* from) {
  switch (dtype) {
    case DType::Float32:
      return read<float>(from);
    case DType::BFloat16:
      return arithmetic::bfloat16_to_float(read<std::uint16_t>(from));
    case DType::Float16:
      return arithmetic::float16_to_float(read<std::uint16_t>(from));
    case DType::Float64:
      return read<double>(from);
  }
  std::abort();
}

/// A float for all but Float64.
void write_element(DType dtype, std::byte* to, double value) {
  const auto single = static_cast<float>(value);
  switch (dtype) {
    case DType::Float32:
      return write(to, std::isnan(single) ? arithmetic::kFloatNan : arithmetic::bits_as<std::uint32_t>(single));
    case DType::BFloat16:
      return write(to, arithmetic::float_to_bfloat16(single));
    case DType::Float16:
      return write(to, arithmetic::float_to_float16(single));
    case DType::Float64:
      return write(to, std::isnan(value) ? arithmetic::kDoubleNan : arithmetic::bits_as<std::uint64_t>(value));
  }
}

std::uint64_t fingerprint_of(const std::vector<std::byte>& bytes) {
  std::uint64_t sum = arithmetic::fingerprint_length(bytes.size());
  for (std::size_t first = 0; first < bytes.size(); first += 16) {
    std::uint32_t words[4] = {};
    std::memcpy(words, bytes.data() + first, std::min<std::size_t>(16, bytes.size() - first));
    sum += arithmetic::fingerprint_vector(words[0], words[1], words[2], words[3], first / 16);
  }
  return sum;
}

PowerSum sum_of(const HostTensor& tensor, double p) {
  PowerSum sum = empty_sum();
  for (std::uint64_t i = 0; i < tensor.count(); ++i) {
    const double magnitude = std::abs(element(tensor, i));
    if (std::isfinite(magnitude)) {
      sum.maximum = std::max(sum.maximum, magnitude);
    } else {
      ++sum.nonfinite;
      sum.nan += std::isnan(magnitude) ? 1 : 0;
    }
  }
  if (!std::isfinite(p)) {
    return sum;
  }
  const auto put = [&sum](long double exact) {
    sum.high = static_cast<double>(exact);
    sum.low = std::isfinite(sum.high) ? static_cast<double>(exact - static_cast<long double>(sum.high)) : 0;
  };
  put(exact_power_sum(tensor, p));
  if (needs_rescaling(sum, p)) {
    sum.scale = rescaling_divisor(sum.maximum, p);
    put(exact_power_sum(tensor, p, sum.scale));
  }
  return sum;
}

class Reference final : public Implementation {
 public:
  Measured measure(const std::vector<HostTensor>& tensors, double p, bool fingerprint) override {
    Measured measured;
    measured.groups.assign(group_count(tensors, &HostTensor::norm_group), empty_sum());
    for (const HostTensor& tensor : tensors) {
      PowerSum sum = sum_of(tensor, p);
      sum.fingerprint = fingerprint ? fingerprint_of(tensor.bytes) : 0;
      measured.tensors.push_back(sum);
      add_tensor(measured.groups[tensor.norm_group], sum, p);
    }
    return measured;
  }

  std::vector<ClipOutcome> decide(
      const std::vector<PowerSum>& sums, const std::vector<arithmetic::ClipLimit>& rules, double p, double scale
  ) override {
    std::vector<ClipOutcome> outcomes;
    const std::size_t each = rules.empty() ? 0 : sums.size() / rules.size();
    for (std::size_t group = 0; group < rules.size(); ++group) {
      PowerSum sum = empty_sum();
      for (std::size_t i = 0; i < each; ++i) {
        add_tensor(sum, sums[group * each + i], p);
      }
      outcomes.push_back(clip(rules[group], norm_of(sum, p), scale, sum.nonfinite));
    }
    return outcomes;
  }

  void scale(std::vector<HostTensor>& tensors, const std::vector<ClipOutcome>& outcomes) override {
    for (HostTensor& tensor : tensors) {
      const ClipOutcome& outcome = outcomes[tensor.clip_group];
      if (!changes(outcome)) {
        continue;
      }
      for (std::uint64_t i = 0; i < tensor.count(); ++i) {
        const double value = element(tensor, i);
        if (tensor.dtype == DType::Float64) {
          set_element(tensor, i, value * outcome.multiplier);
        } else {
          set_element(tensor, i, static_cast<float>(value) * static_cast<float>(outcome.multiplier));
        }
      }
    }
  }

  void copy(std::vector<HostBuffer>& buffers, const MakeParts& make_parts) override {
    std::vector<void*> addresses;
    for (HostBuffer& buffer : buffers) {
      addresses.push_back(buffer.bytes.data());
    }
    for (const CopyPart& part : make_parts(addresses)) {
      copy_part(part);
    }
  }

 private:
  static void copy_part(const CopyPart& part) {
    const bool wide = part.source_dtype == DType::Float64 && part.destination_dtype == DType::Float64;
    for (std::uint64_t row = 0; row < part.rows; ++row) {
      for (std::uint64_t i = 0; i < part.row_count; ++i) {
        const auto* from = static_cast<const std::byte*>(part.source);
        double value = 0;
        if (from != nullptr) {
          value = read_element(part.source_dtype, from + (row * part.source_stride + i) * size_of(part.source_dtype));
        }
        const double quotient = wide
                                    ? value / part.divisor
                                    : static_cast<double>(static_cast<float>(value) / static_cast<float>(part.divisor));
        auto* to = static_cast<std::byte*>(part.destination);
        write_element(
            part.destination_dtype, to + (row * part.destination_stride + i) * size_of(part.destination_dtype), quotient
        );
      }
    }
  }
};

}  // namespace

long double exact_power_sum(const HostTensor& tensor, double p, double scale) {
  // Compensated: 70,000 equal terms would otherwise lose more than a double's last bit even here.
  long double sum = 0;
  long double dropped = 0;
  for (std::uint64_t i = 0; i < tensor.count(); ++i) {
    const long double value = std::abs(static_cast<long double>(element(tensor, i))) / scale;
    const long double term = p == 2 ? value * value : p == 1 ? value : std::pow(value, static_cast<long double>(p));
    long double error = 0;
    sum = two_sum(sum, term, error);
    dropped += error;
  }
  return std::isfinite(sum) ? sum + dropped : sum;
}

double element(const HostTensor& tensor, std::uint64_t i) {
  return read_element(tensor.dtype, tensor.bytes.data() + i * size_of(tensor.dtype));
}

void set_element(HostTensor& tensor, std::uint64_t i, double value) {
  write_element(tensor.dtype, tensor.bytes.data() + i * size_of(tensor.dtype), value);
}

std::unique_ptr<Implementation> make_reference() { return std::make_unique<Reference>(); }

}  // namespace gradsync::kernels
