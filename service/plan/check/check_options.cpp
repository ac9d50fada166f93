#include "base/text/hash.hpp"
#include "base/text/text.hpp"
#include "plan/check/check_max_norm.hpp"
#include "plan/check/check_policy.hpp"
#include "plan/check/declaration_checks.hpp"
#include "plan/check/words.hpp"
#include "plan/limits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

namespace gradsync::plan {

namespace {

Error invalid_option(std::string path, std::string message, std::string hint) {
  Error error = make_error(ErrorCode::InvalidDeclaration, std::move(message), std::move(hint));
  error.path = std::move(path);
  return error;
}

}  // namespace

Error unused_clip_group(std::size_t index, const std::string& group, const std::vector<std::string>& used) {
  const std::string nearest = nearest_name(group, used);
  return invalid_option(
      fmt::format("options.clip[{}].group", index),
      fmt::format("no tensor belongs to clip group '{}'", group),
      nearest.empty() ? fmt::format("clip groups of the tensors: {}", enumerate_names(used))
                      : fmt::format("did you mean '{}'?", nearest)
  );
}

namespace {

Result<void> check_clip_group(const ClipGroupOptions& options, const std::string& path) {
  auto checked = check_max_norm(options.clip, path + ".max_norm");
  if (checked) {
    checked = check_policies(options.clip, path);
  }
  if (checked) {
    return {};
  }
  Error error = checked.error();
  error.code = ErrorCode::InvalidDeclaration;
  error.message = fmt::format("clip group '{}': {}", options.group, error.message);
  return error;
}

Result<void> check_policies_in_all(std::size_t watching, std::int64_t norms) {
  if (watching > kMaxWatchingInAll) {
    return invalid_option(
        "options.clip",
        fmt::format("{} policies watch, at most {} may in all clip groups together", watching, kMaxWatchingInAll),
        "let policies watch the clip groups that matter, or try them on a recorded run: gradsyncd policy replay"
    );
  }
  if (norms > kMaxRememberedNorms) {
    return invalid_option(
        "options.clip",
        fmt::format("the policies remember {} norms, at most {} are allowed", norms, kMaxRememberedNorms),
        "give the clip groups shorter windows, or fewer of them policies that watch"
    );
  }
  return {};
}

Result<void> check_clip_groups(const RankDeclaration& declaration) {
  std::unordered_set<std::string_view, KeyedHash> used;
  for (const TensorDeclaration& tensor : declaration.tensors) {
    used.insert(tensor.clip_group);
  }
  if (used.size() > kMaxClipGroups || declaration.options.clip.size() > kMaxClipGroups) {
    return invalid_option(
        "options.clip",
        fmt::format(
            "{} clip groups, at most {} are allowed",
            std::max(used.size(), declaration.options.clip.size()),
            kMaxClipGroups
        ),
        "clip tensors together: a group is what shares one coefficient"
    );
  }
  std::int64_t norms = 0;
  std::size_t watching = 0;
  std::unordered_map<std::string_view, std::size_t, KeyedHash> listed;
  for (std::size_t i = 0; i < declaration.options.clip.size(); ++i) {
    const ClipGroupOptions& options = declaration.options.clip[i];
    const std::string path = fmt::format("options.clip[{}]", i);
    const auto [first, fresh] = listed.emplace(options.group, i);
    if (!fresh) {
      return invalid_option(
          path + ".group",
          fmt::format("clip group '{}' is listed twice, at {} and {}", options.group, first->second, i),
          "list every clip group once"
      );
    }
    // Whether the group has tensors is seen where all ranks come together: another one may hold them.
    if (const Result<void> checked = check_clip_group(options, path); !checked) {
      return checked.error();
    }
    norms += remembered_norms(options.clip);
    watching += options.clip.watch.size();
  }
  return check_policies_in_all(watching, norms);
}

}  // namespace

Result<void> check_options(const RankDeclaration& declaration) {
  const DeclareOptions& options = declaration.options;
  if (options.accumulate < 1) {
    return invalid_option(
        "options.accumulate",
        fmt::format("accumulate is {}, at least 1 is expected", options.accumulate),
        "give the number of micro-batches of a step"
    );
  }
  if (options.data_path == DataPath::Stats && options.accumulate != 1) {
    return invalid_option(
        "options.accumulate",
        fmt::format("accumulate is {}, but on data path stats nobody counts micro-batches", options.accumulate),
        "leave it out: the framework accumulates"
    );
  }
  if (options.data_path == DataPath::Stats && options.buckets != BucketRule::Default) {
    return invalid_option(
        "options.buckets",
        fmt::format("buckets is \"{}\", but on data path stats there are none", name_of(options.buckets)),
        "leave it out: the framework reduces, in buckets of its own"
    );
  }
  if (options.data_path == DataPath::Stats && options.partial_sums != PartialSums::Exact) {
    return invalid_option(
        "options.partial_sums",
        fmt::format("partial_sums is \"{}\", but on data path stats none travel", name_of(options.partial_sums)),
        "leave it out: the framework reduces"
    );
  }
  // Written so that NaN fails too.
  if (!(options.norm_type >= 1)) {
    return invalid_option(
        "options.norm_type",
        fmt::format("norm_type is {}, a number ≥ 1 or \"Infinity\" is expected", options.norm_type),
        "2 is the usual norm"
    );
  }
  return check_clip_groups(declaration);
}

}  // namespace gradsync::plan
