#include "rpc/handlers/handlers.hpp"
#include "rpc/handlers/method.hpp"

#include <array>

namespace gradsync::rpc {

namespace {

using enum Needs;
using enum Form;

constexpr std::array kMethods{
    method<InitializeParams, InitializeResult, session_initialize>(
        "session.initialize", Local, Request, "Agree on the protocol; the first call of a connection"
    ),
    method<AttachParams, AttachAnswer, job_attach>(
        "job.attach", Initialize, Request, "Become a rank of a job, or come back as it", Audit::Yes
    ),
    method<Empty, Empty, job_detach>("job.detach", Attach, Request, "Leave the job and free its arenas", Audit::Yes),
    method<PauseParams, Empty, job_pause>(
        "job.pause", Attach, Request, "Stop the deadlines that wait for this rank, or let them run again", Audit::Yes
    ),
    method<AllocateParams, AllocateAnswer, buffers_allocate>(
        "buffers.allocate", Attach, Request, "Get memory for gradients; its descriptor comes over the second socket"
    ),
    method<AllocateParams, AllocateAnswer, buffers_adopt>(
        "buffers.adopt", Attach, Request, "Hand back memory of a daemon before this one, over the second socket"
    ),
    method<RegisterParams, RegisterAnswer, buffers_register>(
        "buffers.register", Attach, Request, "Have gradients synchronised where they lie, in memory of a GPU"
    ),
    method<ProbeParams, ProbeAnswer, ipc_probe>(
        "ipc.probe",
        Initialize,
        Request,
        "Have memory of a GPU opened, read, written and closed, to see whether it can be"
    ),
    method<ReleaseParams, Empty, buffers_release>("buffers.release", Attach, Request, "Give a buffer back"),
    method<DeclareParams, DeclareAnswer, gradients_declare, declaration_refused>(
        "gradients.declare",
        Attach,
        Request,
        "Say what the gradients are, in pages; answered when all ranks declared alike"
    ),
    method<ExplainParams, ExplainAnswer, plan_explain>(
        "plan.explain", Nothing, Read, "What is reduced, counted and clipped together, and why"
    ),
    method<BucketReadyParams, Empty, bucket_ready>(
        "bucket.ready", Attach, Notification, "All tensors of a bucket are ready or unused on this rank"
    ),
    method<TensorUnusedParams, Empty, tensor_unused>(
        "tensor.unused", Attach, Notification, "Tensors that get no gradient on this rank in this attempt"
    ),
    method<FinishParams, ReportAnswer, step_finish>(
        "step.finish", Attach, Request, "Reduce, measure and clip; answered when all ranks asked and the work is done"
    ),
    method<NormParams, ReportAnswer, norm_compute>(
        "norm.compute", Attach, Request, "Reduce and measure, multiply nothing; clip.apply finishes the step"
    ),
    method<ClipParams, ReportAnswer, clip_apply>("clip.apply", Attach, Request, "Clip and finish a measured step"),
    method<Empty, ExportAnswer, policy_export>(
        "policy.export", Attach, Read, "What the clipping policies of the job remember, for a checkpoint"
    ),
    method<ImportParams, ReportAnswer, policy_import>(
        "policy.import", Attach, Request, "Go on with such a state; answered when all ranks gave the same", Audit::Yes
    ),
    method<StatsParams, StatsAnswer, stats_get>("stats.get", Nothing, Read, "The last reports of a job"),
    method<Empty, StatusAnswer, status_get>("status.get", Nothing, Read, "The daemon, its jobs and their ranks"),
    method<Empty, DoctorAnswer, doctor_run>(
        "doctor.run", Initialize, Read, "Have the daemon look for what would keep it from serving gradients here"
    ),
    method<DumpParams, DumpAnswer, blackbox_dump>(
        "blackbox.dump", Nothing, Request, "Write what the flight recorders of jobs have, each into a file", Audit::Yes
    ),
    method<LogLevelParams, LogLevelAnswer, log_set_level>(
        "log.set_level", Nothing, Request, "Change what is logged", Audit::Yes
    ),
    method<SubscribeParams, SubscribeAnswer, events_subscribe>(
        "events.subscribe", Initialize, Request, "Push events as events.notification"
    ),
    method<UnsubscribeParams, Empty, events_unsubscribe>(
        "events.unsubscribe", Initialize, Request, "End a subscription"
    ),
    method<Empty, Document, rpc_discover>("rpc.discover", Nothing, Read, "This document"),
};

}  // namespace

std::span<const Method> methods() { return kMethods; }

std::size_t find_method(std::string_view name) {
  std::size_t index = 0;
  while (index < kMethods.size() && name != kMethods[index].name) {
    ++index;
  }
  return index;
}

}  // namespace gradsync::rpc
