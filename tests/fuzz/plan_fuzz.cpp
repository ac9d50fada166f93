// Bytes as a small job whose ranks mostly agree: meshes, tensors, what every rank holds of them by torch's rule of
// chunks, and now and then a rank that says something else. It is written as a file of `gradsyncd plan check`, read
// back equal, and planned; so that the planner is met by more than what text mutations let through.

#include "fuzz/declared.hpp"
#include "fuzz/fuzz.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/wire/declaration_file.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fuzzer/FuzzedDataProvider.h>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr std::array<const char*, 6> kAxes{"pp", "dp_replicate", "dp_shard", "tp", "ep", "odd"};
constexpr std::int64_t kMostRanks = 12;

class Maker {
 public:
  Maker(const std::uint8_t* data, std::size_t size) : bytes_(data, size) {}

  rpc::JobDeclaration job() {
    rpc::JobDeclaration job;
    job.meshes.push_back(mesh("m", 0));
    const std::int64_t world = job.meshes.front().size();
    if (bytes_.ConsumeBool()) {
      job.meshes.push_back(mesh("e", world));
    }
    job.ranks.resize(static_cast<std::size_t>(world));
    const plan::DeclareOptions options = this->options();
    for (plan::RankDeclaration& rank : job.ranks) {
      rank.options = options;
    }
    const int tensors = bytes_.ConsumeIntegralInRange(1, 5);
    for (int i = 0; i < tensors; ++i) {
      add(job, options.data_path, fmt::format("t{}", i));
    }
    for (int twists = bytes_.ConsumeIntegralInRange(-8, 2); twists > 0; --twists) {
      twist(job);
    }
    return job;
  }

 private:
  std::int64_t pick(std::int64_t least, std::int64_t most) { return bytes_.ConsumeIntegralInRange(least, most); }

  bool rarely() { return pick(0, 15) == 15; }

  /// The mesh has `world` ranks, or any number of them where that is 0.
  plan::Mesh mesh(const char* name, std::int64_t world) {
    plan::Mesh mesh;
    mesh.name = name;
    std::int64_t room = world == 0 ? kMostRanks : world;
    for (const char* axis : kAxes) {
      if (mesh.axes.size() < 3 && bytes_.ConsumeBool()) {
        std::int64_t size = pick(1, std::min<std::int64_t>(room, 4));
        while (world != 0 && room % size != 0) {
          --size;
        }
        mesh.axes.push_back({axis, size});
        room /= size;
      }
    }
    if (mesh.axes.empty() || (world != 0 && room > 1)) {
      mesh.axes.push_back({"rest", world == 0 ? 1 : room});
    }
    if (bytes_.ConsumeBool()) {
      for (const plan::Axis& axis : mesh.axes) {
        mesh.sync_order.insert(bytes_.ConsumeBool() ? mesh.sync_order.begin() : mesh.sync_order.end(), axis.name);
      }
    }
    return mesh;
  }

  plan::DeclareOptions options() {
    plan::DeclareOptions options;
    options.data_path = bytes_.ConsumeBool() ? plan::DataPath::Arena : plan::DataPath::Stats;
    options.mode = bytes_.ConsumeBool() ? plan::ClipMode::Strict : plan::ClipMode::Torch;
    options.norm_type = rarely() ? std::numeric_limits<double>::infinity() : 1.0 + bytes_.ConsumeProbability<double>();
    if (options.data_path == plan::DataPath::Arena) {
      options.buckets = rarely() ? plan::BucketRule::Torch : plan::BucketRule::Default;
      options.accumulate = pick(1, 3);
      options.partial_sums = rarely() ? plan::PartialSums::BFloat16 : plan::PartialSums::Exact;
    }
    if (bytes_.ConsumeBool()) {
      options.clip.push_back({"all", {bytes_.ConsumeProbability<double>(), plan::ZeroRule::Off}});
    }
    return options;
  }

  plan::PlacementKind kind(plan::DataPath path, std::int64_t dims, std::int64_t size) {
    const std::int64_t dim = dims == 0 ? 0 : pick(0, dims - 1);
    switch (pick(0, path == plan::DataPath::Arena ? 5 : 2)) {
      case 1:
        return dims == 0 ? plan::PlacementKind(plan::Replicate{}) : plan::Shard{dim};
      case 2: {
        plan::Only only;
        for (std::int64_t at = 0; at < size; ++at) {
          if (bytes_.ConsumeBool()) {
            only.at.push_back(at);
          }
        }
        return only.at.empty() ? plan::Only{{0}} : only;
      }
      case 3:
        return plan::Partial{op_, std::nullopt};
      case 4:
      case 5:
        return plan::Partial{op_, dims == 0 ? std::nullopt : std::optional<plan::Shard>(plan::Shard{dim})};
      default:
        return plan::Replicate{};
    }
  }

  void add(rpc::JobDeclaration& job, plan::DataPath path, const std::string& name) {
    const plan::Mesh& mesh =
        job.meshes[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(job.meshes.size()) - 1))];
    plan::TensorDeclaration tensor;
    tensor.name = name;
    tensor.mesh = mesh.name;
    tensor.dtype = bytes_.PickValueInArray(
        {plan::DType::Float32, plan::DType::BFloat16, plan::DType::Float16, plan::DType::Float64}
    );
    for (std::int64_t dims = pick(0, 3); dims > 0; --dims) {
      tensor.shape.push_back(rarely() ? 0 : pick(1, 9));
    }
    op_ = bytes_.ConsumeBool() ? plan::ReduceOp::Sum : plan::ReduceOp::Mean;
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
      plan::Placement placement;
      std::int64_t size = mesh.axes[a].size;
      placement.axes.push_back(mesh.axes[a].name);
      if (rarely() && a + 1 < mesh.axes.size()) {
        size *= mesh.axes[++a].size;
        placement.axes.push_back(mesh.axes[a].name);
      }
      placement.kind = kind(path, static_cast<std::int64_t>(tensor.shape.size()), size);
      tensor.placements.push_back(std::move(placement));
    }
    if (path == plan::DataPath::Arena && op_ == plan::ReduceOp::Sum && rarely()) {
      tensor.divisor = static_cast<double>(pick(1, 8));
    }
    tensor.tied = rarely() ? std::optional<std::string>("shared") : std::nullopt;
    tensor.layer = bytes_.ConsumeBool() ? std::optional<std::string>("layer") : std::nullopt;
    tensor.clip_group = rarely() ? "other" : "all";
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      hold(job.ranks[rank], tensor, mesh, static_cast<std::int64_t>(rank));
    }
  }

  /// What a rank holds before sync: `shard` axes cut in the order of the mesh, one inside the other.
  static void hold(
      plan::RankDeclaration& rank, plan::TensorDeclaration tensor, const plan::Mesh& mesh, std::int64_t number
  ) {
    const std::vector<std::int64_t> at = mesh.coordinates(number);
    tensor.local_shape = tensor.shape;
    for (const plan::Placement& placement : tensor.placements) {
      std::int64_t place = 0;
      std::int64_t size = 1;
      for (const std::string& axis : placement.axes) {
        const std::size_t index = *mesh.axis_index(axis);
        place = place * mesh.axes[index].size + at[index];
        size *= mesh.axes[index].size;
      }
      if (const auto* only = std::get_if<plan::Only>(&placement.kind)) {
        if (std::find(only->at.begin(), only->at.end(), place) == only->at.end()) {
          return;
        }
      } else if (const auto* shard = std::get_if<plan::Shard>(&placement.kind)) {
        std::int64_t& extent = tensor.local_shape[static_cast<std::size_t>(shard->dim)];
        const std::int64_t chunk = (extent + size - 1) / size;
        extent = std::clamp<std::int64_t>(extent - chunk * place, 0, chunk);
      }
    }
    rank.tensors.own().push_back(std::move(tensor));
  }

  /// One rank says something else.
  void twist(rpc::JobDeclaration& job) {
    plan::RankDeclaration& rank =
        job.ranks[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(job.ranks.size()) - 1))];
    if (rank.tensors.empty()) {
      return;
    }
    const std::size_t row = static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(rank.tensors.size()) - 1));
    plan::TensorDeclaration& tensor = rank.tensors.own()[row];
    switch (pick(0, 7)) {
      case 0:
        rank.tensors.own().erase(rank.tensors.own().begin() + static_cast<std::ptrdiff_t>(row));
        return;
      case 1:
        std::swap(tensor, rank.tensors.own().back());
        return;
      case 2:
        tensor.name += bytes_.ConsumeBool() ? "'" : "";
        tensor.tied = "shared";
        return;
      case 3:
        tensor.local_offset.emplace(tensor.shape.size(), pick(0, 4));
        return;
      case 4:
        for (std::int64_t& extent : tensor.local_shape) {
          extent = pick(0, 9);
        }
        return;
      case 5:
        for (std::int64_t& extent : tensor.shape) {
          extent = bytes_.ConsumeIntegralInRange<std::int64_t>(0, std::numeric_limits<std::int64_t>::max());
        }
        return;
      case 6:
        for (const plan::Placement& placement : tensor.placements) {
          tensor.split_order.insert(tensor.split_order.begin(), placement.axes.begin(), placement.axes.end());
        }
        return;
      default:
        rank.options.accumulate = pick(1, 3);
        return;
    }
  }

  FuzzedDataProvider bytes_;
  plan::ReduceOp op_ = plan::ReduceOp::Sum;
};

std::string text_of(const rpc::JobDeclaration& job) {
  std::string text = fmt::format(R"({{"gradsync_declaration":1,"world_size":{},"meshes":[)", job.ranks.size());
  for (std::size_t i = 0; i < job.meshes.size(); ++i) {
    text += (i == 0 ? "" : ",") + rpc::to_json(job.meshes[i]);
  }
  text += R"(],"options":)" + rpc::to_json(job.ranks.front().options) + "}\n";
  for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
    text += fmt::format(R"({{"rank":{},"tensors":[)", rank);
    for (std::size_t row = 0; row < job.ranks[rank].tensors.size(); ++row) {
      const plan::TensorDeclaration& tensor = job.ranks[rank].tensors[row];
      text += (row == 0 ? "" : ",") + rpc::to_json(rpc::WireTensor{tensor, tensor.local_shape, std::nullopt});
    }
    text += "]}\n";
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const rpc::JobDeclaration job = Maker(data, size).job();
  const bool planned = fuzz::check_declared(job.ranks, job.meshes);
  if (size % 4 != 0) {  // the text costs as much as all the rest
    return 0;
  }
  std::istringstream in(text_of(job));
  const Result<rpc::JobDeclaration> read = rpc::read_declaration_file(in);
  REQUIRE(read.has_value() || !planned);
  if (planned) {
    REQUIRE(read->meshes == job.meshes);
    for (std::size_t rank = 0; rank < job.ranks.size(); ++rank) {
      REQUIRE(read->ranks[rank].tensors == job.ranks[rank].tensors);
      REQUIRE(read->ranks[rank].options == job.ranks[rank].options);
    }
  }
  return 0;
}
