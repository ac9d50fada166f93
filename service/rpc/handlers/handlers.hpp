#pragma once
// One function per method. Each reads its params as a struct and answers with a struct: no JSON here.

#include "rpc/core.hpp"
#include "rpc/wire/result_size.hpp"
#include "rpc/wire/wire_blackbox.hpp"
#include "rpc/wire/wire_declare.hpp"
#include "rpc/wire/wire_doctor.hpp"
#include "rpc/wire/wire_explain.hpp"
#include "rpc/wire/wire_read.hpp"
#include "rpc/wire/wire_session.hpp"
#include "rpc/wire/wire_step.hpp"

namespace gradsync::rpc {

/// The OpenRPC document, JSON already.
struct Document {
  std::string text;
};

template <>
struct Codec<Document> {
  static void write(JsonWriter& writer, const Document& document) { writer.raw(document.text); }

  static Json schema(SchemaBuilder&, Bounds) { return Json{{"type", "object"}}; }
};

// session_handlers.cpp
void session_initialize(Core& core, Caller& caller, InitializeParams params, Answer<InitializeResult> answer);
void job_attach(Core& core, Caller& caller, AttachParams params, Answer<AttachAnswer> answer);
void job_detach(Core& core, Caller& caller, Empty params, Answer<Empty> answer);
void job_pause(Core& core, Caller& caller, PauseParams params, Answer<Empty> answer);
void buffers_allocate(Core& core, Caller& caller, AllocateParams params, Answer<AllocateAnswer> answer);
void buffers_adopt(Core& core, Caller& caller, AllocateParams params, Answer<AllocateAnswer> answer);
void buffers_register(Core& core, Caller& caller, RegisterParams params, Answer<RegisterAnswer> answer);
void ipc_probe(Core& core, Caller& caller, ProbeParams params, Answer<ProbeAnswer> answer);
void buffers_release(Core& core, Caller& caller, ReleaseParams params, Answer<Empty> answer);

// declare_handlers.cpp
void gradients_declare(Core& core, Caller& caller, DeclareParams params, Answer<DeclareAnswer> answer);
void declaration_refused(Core& core, Caller& caller, const Error& refusal);
void plan_explain(Core& core, Caller& caller, ExplainParams params, Answer<ExplainAnswer> answer);

// step_handlers.cpp
void bucket_ready(Core& core, Caller& caller, BucketReadyParams params, Answer<Empty> answer);
void tensor_unused(Core& core, Caller& caller, TensorUnusedParams params, Answer<Empty> answer);
void step_finish(Core& core, Caller& caller, FinishParams params, Answer<ReportAnswer> answer);
void norm_compute(Core& core, Caller& caller, NormParams params, Answer<ReportAnswer> answer);
void clip_apply(Core& core, Caller& caller, ClipParams params, Answer<ReportAnswer> answer);
void policy_export(Core& core, Caller& caller, Empty params, Answer<ExportAnswer> answer);
void policy_import(Core& core, Caller& caller, ImportParams params, Answer<ReportAnswer> answer);

// read_handlers.cpp
void stats_get(Core& core, Caller& caller, StatsParams params, Answer<StatsAnswer> answer);
void status_get(Core& core, Caller& caller, Empty params, Answer<StatusAnswer> answer);
void doctor_run(Core& core, Caller& caller, Empty params, Answer<DoctorAnswer> answer);
void blackbox_dump(Core& core, Caller& caller, DumpParams params, Answer<DumpAnswer> answer);
void log_set_level(Core& core, Caller& caller, LogLevelParams params, Answer<LogLevelAnswer> answer);
void events_subscribe(Core& core, Caller& caller, SubscribeParams params, Answer<SubscribeAnswer> answer);
void events_unsubscribe(Core& core, Caller& caller, UnsubscribeParams params, Answer<Empty> answer);
void rpc_discover(Core& core, Caller& caller, Empty params, Answer<Document> answer);

}  // namespace gradsync::rpc
