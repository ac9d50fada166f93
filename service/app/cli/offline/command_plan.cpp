#include "app/cli/exit_code.hpp"
#include "app/cli/offline/named_file.hpp"
#include "app/config/settings.hpp"
#include "base/error_page.hpp"
#include "base/text/text.hpp"
#include "plan/explain.hpp"
#include "plan/layout/bucket_assignment.hpp"
#include "plan/make_plan.hpp"
#include "rpc/wire/declaration_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <fstream>
#include <iostream>

namespace gradsync::app {

namespace {

using Json = nlohmann::ordered_json;

Result<plan::Plan> plan_of(std::istream& in, plan::BucketSizes sizes) {
  const bool shows = ::isatty(STDERR_FILENO) == 1;
  const Result<rpc::JobDeclaration> job = rpc::read_declaration_file(in, [shows](std::size_t ranks) {
    if (shows && ranks % 64 == 0) {
      std::cerr << "\r" << ranks << " ranks read" << std::flush;
    }
  });
  if (shows) {
    std::cerr << "\r";
  }
  if (!job) {
    return job.error();
  }
  std::vector<const plan::RankDeclaration*> by_rank;
  for (const plan::RankDeclaration& rank : job->ranks) {
    by_rank.push_back(&rank);
  }
  return plan::plan_job(by_rank, job->meshes, sizes);
}

Json refusal(const Error& error) {
  Json json{
      {"ok", false},
      {"kind", kind_of(error.code)},
      {"message", error.message},
      {"hint", with_page(error.hint, error.code)}};
  if (!error.path.empty()) {
    json["path"] = error.path;
  }
  if (!error.tensor.empty()) {
    json["tensor"] = error.tensor;
  }
  if (error.rank) {
    json["rank"] = *error.rank;
  }
  if (!error.ranks.empty()) {
    json["ranks"] = error.ranks;
  }
  return json;
}

std::uint64_t counted(const plan::Plan& plan) {
  std::uint64_t elements = 0;
  for (const plan::PlannedTensor& tensor : plan.tensors) {
    elements += static_cast<std::uint64_t>(tensor.counted_elements);
  }
  return elements;
}

/// Only data path arena has buckets; there the digest depends on their sizes.
bool has_buckets(const plan::Plan& plan) { return plan.options.data_path == plan::DataPath::Arena; }

Json summary(const plan::Plan& plan, plan::BucketSizes sizes, bool explain) {
  Json json{
      {"ok", true},
      {"ranks", plan.world_size},
      {"tensors", plan.tensors.size()},
      {"counted_elements", counted(plan)},
      {"plan_digest", plan.digest}};
  if (has_buckets(plan)) {
    json["bucket_sizes"] = {{"first_bucket_bytes", sizes.first_bytes}, {"bucket_bytes", sizes.bytes}};
  }
  json["scalar_collectives"] = Json::array();
  for (const plan::ScalarCollective& collective : plan.scalar_collectives) {
    json["scalar_collectives"].push_back(
        {{"mesh", collective.mesh}, {"axes", collective.axes}, {"length", collective.length}}
    );
  }
  json["norm_groups"] = Json::array();
  for (std::size_t i = 0; i < plan.norm_groups.size(); ++i) {
    json["norm_groups"].push_back(plan::explain_norm_group(plan, i));
  }
  if (explain) {
    json["explained"] = Json::array();  // names may repeat: `only` placements tell their tensors apart
    for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
      json["explained"].push_back({{"tensor", plan.tensors[i].declaration.name}, {"why", plan::explain_tensor(plan, i)}}
      );
    }
  }
  return json;
}

void print(const plan::Plan& plan, plan::BucketSizes sizes, bool explain) {
  std::cout << fmt::format(
      "ok: {} ranks, {} tensors, {} elements counted once, plan {}\n",
      plan.world_size,
      plan.tensors.size(),
      counted(plan),
      plan.digest
  );
  if (has_buckets(plan) && plan.options.buckets == plan::BucketRule::Torch) {
    std::cout << fmt::format("  {} buckets, those of torch's DistributedDataParallel\n", plan.buckets.size());
  } else if (has_buckets(plan)) {
    std::cout << fmt::format(
        "  {} buckets: the first of {}, the others of {} (engine.first_bucket_bytes, engine.bucket_bytes)\n",
        plan.buckets.size(),
        human_bytes(sizes.first_bytes),
        human_bytes(sizes.bytes)
    );
  }
  for (std::size_t i = 0; i < plan.norm_groups.size(); ++i) {
    std::cout << "  " << plan::explain_norm_group(plan, i) << "\n";
  }
  for (std::uint32_t i = 0; explain && i < plan.tensors.size(); ++i) {
    std::cout << plan.tensors[i].declaration.name << ": " << plan::explain_tensor(plan, i) << "\n";
  }
}

}  // namespace

int execute(const PlanCheckCommand& command) {
  const Result<Configuration> configuration = load_settings(command.settings);
  if (configuration.has_error()) {
    complain(configuration.error().message, configuration.error().hint);
    return kExitConfiguration;
  }
  plan::BucketSizes sizes = bucket_sizes(configuration->options.engine);
  std::ifstream file;
  if (command.file != "-" &&
      !open_to_read(
          file,
          command.file,
          "write the file with save_declaration() of the Python client, or pass - for standard input"
      )) {
    return kExitUsage;
  }
  const Result<plan::Plan> plan = plan_of(command.file == "-" ? std::cin : file, sizes);
  if (plan.has_error()) {
    if (command.json) {
      std::cout << refusal(plan.error()).dump(2) << "\n";
    } else {
      const std::string& path = plan.error().path;
      complain(
          (path.empty() ? "" : path + ": ") + plan.error().message, with_page(plan.error().hint, plan.error().code)
      );
    }
    return kExitFailure;
  }
  if (plan->options.buckets == plan::BucketRule::Torch) {
    sizes = plan::kTorchBucketSizes;
  }
  if (command.json) {
    std::cout << summary(*plan, sizes, command.explain).dump(2) << "\n";
  } else {
    print(*plan, sizes, command.explain);
  }
  return kExitOk;
}

}  // namespace gradsync::app
