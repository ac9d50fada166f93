#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "plan/check/declaration_checks.hpp"
#include "plan/interrupt.hpp"
#include "plan/make_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

namespace gradsync::plan {

Error TensorAt::error(ErrorCode code, const std::string& field, const std::string& message, std::string hint) const {
  Error error = make_error(code, fmt::format("tensor '{}': {}", tensor.name, message), std::move(hint));
  error.path = fmt::format("tensors[{}].{}", index, field);
  error.tensor = tensor.name;
  return error;
}

namespace {

constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 62;

Error invalid_list(std::string path, std::string message, std::string hint) {
  Error error = make_error(ErrorCode::InvalidDeclaration, std::move(message), std::move(hint));
  error.path = std::move(path);
  return error;
}

Result<void> check_text(const TensorAt& at, const char* field, const std::string& text) {
  if (text.empty() || text.size() > kMaxNameBytes) {
    // The name itself may be what is too long: the index names the tensor.
    Error error = invalid_list(
        fmt::format("tensors[{}].{}", at.index, field),
        fmt::format("{} of tensor {} has {} bytes, 1 to {} are expected", field, at.index, text.size(), kMaxNameBytes),
        fmt::format("give tensor {} a {} of that length", at.index, field)
    );
    return error;
  }
  return {};
}

Result<void> check_texts(const TensorAt& at) {
  if (const auto name = check_text(at, "name", at.tensor.name); !name) {
    return name.error();
  }
  if (const auto group = check_text(at, "clip_group", at.tensor.clip_group); !group) {
    return group.error();
  }
  if (at.tensor.layer) {
    if (const auto layer = check_text(at, "layer", *at.tensor.layer); !layer) {
      return layer.error();
    }
  }
  return at.tensor.tied ? check_text(at, "tied", *at.tensor.tied) : Result<void>{};
}

Error unknown_mesh(const TensorAt& at, const std::vector<Mesh>& meshes) {
  std::vector<std::string> names;
  for (const Mesh& mesh : meshes) {
    names.push_back(mesh.name);
  }
  const std::string nearest = nearest_name(at.tensor.mesh, names);
  return at.invalid(
      "mesh",
      fmt::format("mesh '{}' is not one of the job's ({})", at.tensor.mesh, enumerate_names(names)),
      nearest.empty() ? "name a mesh that the job attached with" : fmt::format("did you mean '{}'?", nearest)
  );
}

/// At most: an output of its own is not larger.
std::uint64_t arena_bytes_of(const TensorDeclaration& tensor) {
  const bool scatters = std::any_of(tensor.placements.begin(), tensor.placements.end(), [](const Placement& placement) {
    const Partial* partial = std::get_if<Partial>(&placement.kind);
    return partial != nullptr && partial->to_shard;
  });
  const std::uint64_t bytes =
      align_up(static_cast<std::uint64_t>(numel_of(tensor.local_shape)) * size_of(tensor.dtype));
  return scatters ? 2 * bytes : bytes;
}

Result<void> check_tensor(const TensorAt& at, const Mesh& mesh, DataPath data_path) {
  if (const auto shapes = check_shapes(at); !shapes) {
    return shapes.error();
  }
  if (const auto placements = check_placements(at, mesh); !placements) {
    return placements.error();
  }
  if (const auto extent = check_local_extent(at); !extent) {
    return extent.error();
  }
  return data_path == DataPath::Arena ? Result<void>{} : check_reduced(at);
}

/// The names and bytes that earlier tensors of the list have taken.
struct Taken {
  std::unordered_map<std::string_view, std::size_t, KeyedHash> names;
  std::uint64_t arena_bytes = 0;
};

Result<void> check_among(const TensorAt& at, Taken& taken) {
  const TensorDeclaration& tensor = at.tensor;
  if (const auto [first, fresh] = taken.names.emplace(tensor.name, at.index); !fresh) {
    return at.invalid(
        "name",
        fmt::format("declared twice, as tensors {} and {}", first->second, at.index),
        "declare every gradient once, under a name of its own"
    );
  }
  taken.arena_bytes += arena_bytes_of(tensor);
  if (taken.arena_bytes >= kMaxArenaBytes) {
    return invalid_list(
        "tensors", fmt::format("tensors 0 to {} need 2^62 bytes or more together", at.index), "check the sizes"
    );
  }
  return {};
}

Result<void> check_fingerprints(const RankDeclaration& declaration) {
  const std::size_t given = declaration.weight_fingerprints.size();
  if (given == 0 || given == declaration.tensors.size()) {
    return {};
  }
  return invalid_list(
      "tensors",
      fmt::format("{} weight fingerprints for {} tensors", given, declaration.tensors.size()),
      "give one for every tensor, or none"
  );
}

}  // namespace

Result<void> validate_declaration(const RankDeclaration& declaration, const std::vector<Mesh>& meshes) {
  const DataPath data_path = declaration.options.data_path;
  std::unordered_map<std::string_view, const Mesh*, KeyedHash> mesh_by_name;
  for (const Mesh& mesh : meshes) {
    mesh_by_name.emplace(mesh.name, &mesh);
  }
  Taken taken;
  taken.names.reserve(declaration.tensors.size());
  for (std::size_t i = 0; i < declaration.tensors.size(); ++i) {
    interruption_point();
    const TensorAt at{declaration.tensors[i], i};
    if (const auto texts = check_texts(at); !texts) {
      return texts.error();
    }
    const auto mesh = mesh_by_name.find(at.tensor.mesh);
    if (mesh == mesh_by_name.end()) {
      return unknown_mesh(at, meshes);
    }
    if (const auto tensor = check_tensor(at, *mesh->second, data_path); !tensor) {
      return tensor.error();
    }
    if (const auto among = check_among(at, taken); !among) {
      return among.error();
    }
  }
  return check_beside_tensors(declaration);
}

Result<void> check_beside_tensors(const RankDeclaration& declaration) {
  if (const auto fingerprints = check_fingerprints(declaration); !fingerprints) {
    return fingerprints.error();
  }
  return check_options(declaration);
}

}  // namespace gradsync::plan
