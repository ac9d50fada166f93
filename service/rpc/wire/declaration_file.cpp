#include "rpc/wire/declaration_file.hpp"

#include "plan/declaration_pool.hpp"
#include "rpc/json/codec.hpp"
#include "rpc/json/json_tape.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_session.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

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
  declaration.tensors.own().reserve(rank.tensors.size());
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

/// A line that begins with its rank, as clients write it. Lines of ranks that declare alike differ in nothing else.
struct NumberedLine {
  std::int64_t rank = 0;
  std::string_view rest;
};

std::optional<NumberedLine> numbered(std::string_view text) {
  constexpr std::string_view kBegin = R"({"rank":)";
  if (!text.starts_with(kBegin)) {
    return std::nullopt;
  }
  NumberedLine line;
  line.rest = text.substr(kBegin.size());
  line.rest.remove_prefix(line.rest.starts_with(' ') ? 1 : 0);
  const auto [end, error] = std::from_chars(line.rest.data(), line.rest.data() + line.rest.size(), line.rank);
  const auto digits = static_cast<std::size_t>(end - line.rest.data());
  if (error != std::errc{} || line.rest.starts_with('-') || (line.rest.starts_with('0') && digits > 1)) {
    return std::nullopt;
  }
  line.rest.remove_prefix(digits);
  return line;
}

/// The last few lines that were read, so that another one of their kind is compared with them instead of read.
class RecentLines {
 public:
  /// The rank that had the same line, or none.
  [[nodiscard]] std::optional<std::int64_t> find(const NumberedLine& line) const {
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.rest == line.rest; });
    return found == kept_.end() ? std::nullopt : std::optional(found->rank);
  }

  void keep(const NumberedLine& line) {
    kept_.push_front({line.rank, std::string(line.rest)});
    bytes_ += line.rest.size();
    while (kept_.size() > 1 && (kept_.size() > kMostLines || bytes_ > kMostBytes)) {
      bytes_ -= kept_.back().rest.size();
      kept_.pop_back();
    }
  }

 private:
  static constexpr std::size_t kMostLines = 16;
  static constexpr std::size_t kMostBytes = 16U << 20;

  struct Kept {
    std::int64_t rank;
    std::string rest;
  };

  std::deque<Kept> kept_;  ///< the newest first
  std::size_t bytes_ = 0;
};

/// Reads the lines of ranks.
class RankReader {
 public:
  explicit RankReader(const FileHead& head)
      : head_(head), pool_(head.meshes), ranks_(static_cast<std::size_t>(head.world_size)) {}

  Result<void> read(const std::string& text, std::size_t line) {
    const std::optional<NumberedLine> parts = numbered(text);
    if (const auto same = parts ? recent_.find(*parts) : std::nullopt) {
      const Result<Slot*> slot = slot_of(parts->rank, line);
      if (!slot) {
        return slot.error();
      }
      **slot = ranks_[static_cast<std::size_t>(*same)];
      return {};
    }
    FileRank rank;
    if (const auto read = read_line(text, line, rank); !read) {
      return read.error();
    }
    if (const auto admitted = admit(std::move(rank), line); !admitted) {
      return admitted.error();
    }
    if (parts) {
      recent_.keep(*parts);
    }
    return {};
  }

  Result<std::vector<plan::RankDeclaration>> take() {
    std::vector<plan::RankDeclaration> all;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank]) {
        return invalid_params(
            "rank",
            fmt::format("rank {} of {} has no line", rank, ranks_.size()),
            "a rank that holds nothing has no tensors"
        );
      }
      all.push_back(std::move(*ranks_[rank]));
    }
    return all;
  }

 private:
  using Slot = std::optional<plan::RankDeclaration>;

  Result<Slot*> slot_of(std::int64_t rank, std::size_t line) {
    if (rank >= head_.world_size) {
      return wrong_rank(
          line, fmt::format("rank is {}, world_size {}", rank, head_.world_size), "ranks are 0 to world_size - 1"
      );
    }
    Slot& slot = ranks_[static_cast<std::size_t>(rank)];
    if (slot) {
      return wrong_rank(line, fmt::format("rank {} has a second line", rank), "one line per rank");
    }
    return &slot;
  }

  Result<void> admit(FileRank&& rank, std::size_t line) {
    const std::int64_t number = rank.rank;
    const Result<Slot*> slot = slot_of(number, line);
    if (!slot) {
      return slot.error();
    }
    plan::RankDeclaration declaration = declaration_of(std::move(rank), head_.options);
    Result<plan::TensorList> tensors = pool_.admit(declaration);
    if (!tensors) {
      Error error = at_line(tensors.error(), line);
      error.rank = number;
      return error;
    }
    declaration.tensors = std::move(*tensors);
    **slot = std::move(declaration);
    return {};
  }

  const FileHead& head_;
  plan::DeclarationPool pool_;
  std::vector<Slot> ranks_;
  RecentLines recent_;
};

}  // namespace

Result<JobDeclaration> read_declaration_file(std::istream& in, const std::function<void(std::size_t)>& progress) {
  FileHead head;
  std::optional<RankReader> reader;
  std::string text;
  std::size_t seen = 0;
  for (std::size_t line = 1; std::getline(in, text); ++line) {
    if (text.empty()) {
      continue;
    }
    if (!reader) {
      if (const auto read = read_head(text, line, head); !read) {
        return read.error();
      }
      reader.emplace(head);
      continue;
    }
    if (const auto read = reader->read(text, line); !read) {
      return read.error();
    }
    if (progress) {
      progress(++seen);
    }
  }
  if (!reader) {
    return make_error(
        ErrorCode::ParseError, "the file is empty", "its first line is the head: see gradsyncd plan check --help"
    );
  }
  Result<std::vector<plan::RankDeclaration>> ranks = reader->take();
  if (!ranks) {
    return ranks.error();
  }
  return JobDeclaration{std::move(head.meshes), std::move(*ranks)};
}

}  // namespace gradsync::rpc
