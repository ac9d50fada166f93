// Steps, and what policies remember of them.

#include "rpc/handlers/handlers.hpp"

#include <boost/algorithm/hex.hpp>

#include <iterator>

namespace gradsync::rpc {

namespace {

std::optional<Milliseconds> timeout_of(const std::optional<std::int64_t>& timeout_ms) {
  return timeout_ms ? std::optional(Milliseconds(*timeout_ms)) : std::nullopt;
}

engine::Reply<engine::RankReport> report_to(Answer<ReportAnswer> answer) {
  return [answer = std::move(answer)](const Result<engine::RankReport>& report) {
    if (!report) {
      answer(report.error());
    } else if (!report->text || !answer.with_text(*report->text)) {
      answer(ReportAnswer{*report->report, std::nullopt});
    }
  };
}

engine::FinishRequest finish_request(NormParams& params, engine::FinishKind kind) {
  engine::FinishRequest request;
  request.key = {params.epoch, params.attempt};
  request.step = params.step;
  request.kind = kind;
  request.ready_all = params.ready.all;
  request.ready = std::move(params.ready.buckets);
  request.unused = std::move(params.unused);
  request.scale = params.scale;
  request.scaled = params.scaled.value_or(params.scale != 1);
  request.bucket_digests = std::move(params.bucket_digests);
  request.micro_batch = params.micro_batch;
  request.timeout = timeout_of(params.timeout_ms);
  return request;
}

}  // namespace

void bucket_ready(Core& core, Caller& caller, BucketReadyParams params, Answer<Empty> answer) {
  core.engine.bucket_ready(
      caller.connection->session, {{params.epoch, params.attempt}, params.bucket, params.micro_batch}
  );
  answer(Empty{});
}

void tensor_unused(Core& core, Caller& caller, TensorUnusedParams params, Answer<Empty> answer) {
  core.engine.tensor_unused(caller.connection->session, {{params.epoch, params.attempt}, std::move(params.tensors)});
  answer(Empty{});
}

void step_finish(Core& core, Caller& caller, FinishParams params, Answer<ReportAnswer> answer) {
  engine::FinishRequest request = finish_request(params, engine::FinishKind::Finish);
  request.override_max_norm = params.max_norm.given;
  request.max_norm = params.max_norm.value;
  core.engine.finish(caller.connection->session, std::move(request), report_to(std::move(answer)));
}

void norm_compute(Core& core, Caller& caller, NormParams params, Answer<ReportAnswer> answer) {
  core.engine.finish(
      caller.connection->session, finish_request(params, engine::FinishKind::NormOnly), report_to(std::move(answer))
  );
}

void clip_apply(Core& core, Caller& caller, ClipParams params, Answer<ReportAnswer> answer) {
  engine::ClipRequest request;
  request.key = {params.epoch, params.attempt};
  request.step = params.step;
  request.override_max_norm = params.max_norm.given;
  request.max_norm = params.max_norm.value;
  request.abandon = params.abandon;
  request.timeout = timeout_of(params.timeout_ms);
  core.engine.clip(caller.connection->session, std::move(request), report_to(std::move(answer)));
}

void policy_export(Core& core, Caller& caller, Empty /*params*/, Answer<ExportAnswer> answer) {
  const Result<engine::PolicyExport> exported = core.engine.export_policies(caller.connection->session);
  if (!exported) {
    answer(exported.error());
    return;
  }
  ExportAnswer result{{}, exported->digest};
  result.state.reserve(2 * exported->state.size());
  boost::algorithm::hex_lower(exported->state, std::back_inserter(result.state));
  answer(std::move(result));
}

void policy_import(Core& core, Caller& caller, ImportParams params, Answer<ReportAnswer> answer) {
  engine::ImportRequest request;
  request.key = {params.epoch, params.attempt};
  request.timeout = timeout_of(params.timeout_ms);
  try {
    boost::algorithm::unhex(params.state, std::back_inserter(request.state));
  } catch (const boost::algorithm::hex_decode_error&) {
    answer(invalid_params("state", "the state is not in hex digits, two for a byte", "pass it as policy.export gave it")
    );
    return;
  }
  core.engine.import_policies(caller.connection->session, std::move(request), report_to(std::move(answer)));
}

}  // namespace gradsync::rpc
