#include "rpc/wire/declaration_file.hpp"

#include "plan/make_plan.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_session.hpp"

#include <fmt/format.h>

#include <optional>
#include <string>

namespace gradsync::rpc {

struct FileHead {
  std::int64_t version = 0;
  std::int64_t world_size = 0;
  std::vector<plan::Mesh> meshes;
  plan::DeclareOptions options;
};

struct FileRank {
  std::int64_t rank = 0;
  std::vector<WireTensor> tensors;
};

template <>
struct Fields<FileHead> {
  static constexpr const char* kName = "DeclarationFileHead";

  static void visit(auto& v, auto& s) {
    v.required("gradsync_declaration", s.version, "version of the format: 1", Bounds{1, 1});
    v.required("world_size", s.world_size, "ranks of the job", Bounds{1, 65536});
    v.required("meshes", s.meshes, "each covers all ranks", Bounds{1, 64});
    v.optional("options", s.options, "as in gradients.declare");
  }
};

template <>
struct Fields<FileRank> {
  static constexpr const char* kName = "DeclarationFileRank";

  static void visit(auto& v, auto& s) {
    v.required("rank", s.rank, "whose declaration this is", kNatural);
    v.required("tensors", s.tensors, "as in gradients.declare");
  }
};

namespace {

constexpr std::size_t kDepth = 32;

Error at_line(Error error, std::size_t line) {
  error.path = error.path.empty() ? fmt::format("line {}", line) : fmt::format("line {}: {}", line, error.path);
  return error;
}

template <typename T>
Result<void> read_line(const std::string& text, std::size_t line, T& out) {
  const Result<Tape> tape = read_json(text, kDepth);
  if (!tape) {
    return at_line(tape.error(), line);
  }
  if (const Result<void> read = read_params(tape->root(), out); !read) {
    return at_line(read.error(), line);
  }
  return {};
}

plan::RankDeclaration declaration_of(FileRank&& rank, const plan::DeclareOptions& options) {
  plan::RankDeclaration declaration;
  declaration.options = options;
  declaration.tensors.reserve(rank.tensors.size());
  for (WireTensor& tensor : rank.tensors) {
    append(declaration, std::move(tensor));
  }
  return declaration;
}

Error wrong_rank(std::size_t line, std::string message, std::string hint) {
  return at_line(invalid_params("rank", std::move(message), std::move(hint)), line);
}

Result<void> read_head(const std::string& text, std::size_t line, FileHead& head) {
  if (const auto read = read_line(text, line, head); !read) {
    return read.error();
  }
  if (const auto valid = plan::validate_meshes(head.meshes, head.world_size); !valid) {
    return at_line(valid.error(), line);
  }
  return {};
}

using FileRanks = std::vector<std::optional<plan::RankDeclaration>>;

Result<void> read_rank(const std::string& text, std::size_t line, const FileHead& head, FileRanks& ranks) {
  FileRank rank;
  if (const auto read = read_line(text, line, rank); !read) {
    return read.error();
  }
  if (rank.rank >= head.world_size) {
    return wrong_rank(
        line, fmt::format("rank is {}, world_size {}", rank.rank, head.world_size), "ranks are 0 to world_size - 1"
    );
  }
  const std::int64_t number = rank.rank;
  std::optional<plan::RankDeclaration>& slot = ranks[static_cast<std::size_t>(number)];
  if (slot) {
    return wrong_rank(line, fmt::format("rank {} has a second line", number), "one line per rank");
  }
  slot = declaration_of(std::move(rank), head.options);
  if (const auto valid = plan::validate_declaration(*slot, head.meshes); !valid) {
    Error error = at_line(valid.error(), line);
    error.rank = number;
    return error;
  }
  return {};
}

}  // namespace

Result<JobDeclaration> read_declaration_file(std::istream& in, const std::function<void(std::size_t)>& progress) {
  FileHead head;
  JobDeclaration job;
  FileRanks ranks;
  std::string text;
  std::size_t seen = 0;
  for (std::size_t line = 1; std::getline(in, text); ++line) {
    if (text.empty()) {
      continue;
    }
    if (ranks.empty()) {
      if (const auto read = read_head(text, line, head); !read) {
        return read.error();
      }
      ranks.resize(static_cast<std::size_t>(head.world_size));
      continue;
    }
    if (const auto read = read_rank(text, line, head, ranks); !read) {
      return read.error();
    }
    if (progress) {
      progress(++seen);
    }
  }
  if (ranks.empty()) {
    return make_error(
        ErrorCode::ParseError, "the file is empty", "its first line is the head: see gradsyncd plan check --help"
    );
  }
  job.meshes = std::move(head.meshes);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank]) {
      return invalid_params(
          "rank",
          fmt::format("rank {} of {} has no line", rank, ranks.size()),
          "a rank that holds nothing has no tensors"
      );
    }
    job.ranks.push_back(std::move(*ranks[rank]));
  }
  return job;
}

}  // namespace gradsync::rpc
