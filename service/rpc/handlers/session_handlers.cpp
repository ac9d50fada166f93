#include "base/text/hash.hpp"
#include "base/version.hpp"
#include "rpc/handlers/handlers.hpp"

#include <fmt/format.h>

namespace gradsync::rpc {

namespace {

/// Another connection has taken the session, or it has ended: this connection may no longer speak or die for it.
void forget_session(Core& core, engine::SessionId session, const Connection* except) {
  for (auto& [id, connection] : core.connections) {
    if (connection.session == session && &connection != except) {
      connection.session = 0;
    }
  }
  std::erase_if(core.orphans, [&](const auto& entry) { return entry.second == session; });
}

void grant(const AllocateParams& params, const Answer<AllocateAnswer>& answer, auto&& ask) {
  if (params.device != "cpu") {
    answer(invalid_params("device", fmt::format("device is \"{}\"; expected \"cpu\"", params.device)));
    return;
  }
  Result<engine::BufferGrant> granted = ask();
  if (!granted) {
    answer(granted.error());
    return;
  }
  answer(AllocateAnswer{granted->buffer, granted->size_bytes, std::move(granted->token)});
}

/// The bytes of the handle by which a process of this machine exports memory of a GPU.
template <typename Params>
Result<std::string> exported_handle(const Core& core, const Caller& caller, const Params& params) {
  if (params.transport != "cuda_ipc") {
    return invalid_params(
        "transport",
        fmt::format("transport is \"{}\"; expected \"cuda_ipc\"", params.transport),
        "buffers.allocate gives memory of CPUs"
    );
  }
  const std::string& boot_id = caller.connection->client->boot_id;
  if (!boot_id.empty() && boot_id != core.identity.boot_id) {
    return make_error(
        ErrorCode::ImportRefused,
        fmt::format(
            "this process runs on another machine (boot {}, the daemon's is {})", boot_id, core.identity.boot_id
        ),
        "a GPU's memory can be shared on one machine only: connect to the daemon of this one"
    );
  }
  std::optional<std::string> handle = bytes_of_hex(params.handle);
  if (!handle) {
    return invalid_params("handle", "handle is not made of hex digits", "two digits for each byte of the handle");
  }
  return std::move(*handle);
}

std::string client_version(Value params) {
  const auto client = params.member("client");
  const auto version = client ? client->member("version") : std::nullopt;
  return version && version->is(TokenType::String) ? " " + version->describe() : "";
}

}  // namespace

Result<void> InitializeParams::check_before_reading(Value params) {
  const auto protocol = params.member("protocol");
  if (!protocol || !protocol->is_integer() || protocol->describe() == std::to_string(kProtocolVersion)) {
    return {};
  }
  Error error = make_error(
      ErrorCode::VersionMismatch,
      fmt::format(
          "the client{} speaks protocol {}, gradsyncd \"{}\" speaks protocol {}",
          client_version(params),
          protocol->describe(),
          kVersion,
          kProtocolVersion
      )
  );
  error.path = "protocol";
  return error;
}

void session_initialize(Core& core, Caller& caller, InitializeParams params, Answer<InitializeResult> answer) {
  if (caller.connection->client) {
    answer(make_error(ErrorCode::InvalidRequest, "this connection is initialized already", "open another connection"));
    return;
  }
  caller.connection->client = std::move(params);
  core.metrics.sessions.Increment();
  answer(InitializeResult{
      kProtocolVersion,
      ServerAnswer{"gradsyncd", core.identity.version, core.identity.pid, core.identity.boot_id},
      core.identity.incarnation,
      Capabilities{
          {"arena", "stats"},
          {"float32", "bfloat16", "float16", "float64"},
          {"strict", "torch"},
          {{"replicate", "shard", "only", "partial_to_replicate", "partial_to_shard"}, {"replicate", "shard", "only"}},
      },
      LimitsAnswer{
          core.limits.message_bytes,
          core.limits.depth,
          core.limits.batch_items,
          core.limits.engine.sessions,
          core.limits.engine.buffers_per_session,
          core.limits.engine.tensors,
          core.limits.subscriptions,
          seconds(core.limits.deadlines.declare),
          seconds(core.limits.deadlines.first_step),
          seconds(core.limits.deadlines.step),
      },
  });
}

void job_attach(Core& core, Caller& caller, AttachParams params, Answer<AttachAnswer> answer) {
  Connection& connection = *caller.connection;
  const bool same = connection.job == params.job && connection.rank == params.rank;
  if (connection.session != 0 && !same) {
    Error error = make_error(
        ErrorCode::RankInUse,
        fmt::format("this connection is rank {} of job \"{}\" already", connection.rank, connection.job),
        "job.detach first, or open another connection"
    );
    error.job = connection.job;
    error.rank = connection.rank;
    answer(std::move(error));
    return;
  }
  engine::AttachRequest request;
  request.job = params.job;
  request.uid = caller.peer.uid;
  request.pid = caller.peer.pid;  // the kernel's word; 0 when the peer lives in another pid namespace
  request.client_id = connection.client->client_id;
  request.rank = params.rank;
  request.world_size = params.world_size;
  request.meshes = std::move(params.meshes);
  request.restart_count = params.restart_count;
  request.local_world_size = params.local_world_size;
  request.coordinator = std::move(params.coordinator);
  const Result<engine::AttachResult> attached = core.engine.attach(request);
  if (!attached) {
    answer(attached.error());
    return;
  }
  forget_session(core, attached->session, &connection);
  connection.session = attached->session;
  connection.job = std::move(params.job);
  connection.rank = params.rank;
  connection.declaring = {};
  answer(AttachAnswer{attached->session, attached->epoch, attached->attempt, attached->last_step, attached->resumed});
}

void job_detach(Core& core, Caller& caller, Empty, Answer<Empty> answer) {
  const engine::SessionId session = std::exchange(caller.connection->session, 0);
  caller.connection->declaring = {};
  const Result<void> detached = core.engine.detach(session);
  if (!detached) {
    answer(detached.error());
    return;
  }
  answer(Empty{});
}

void job_pause(Core& core, Caller& caller, PauseParams params, Answer<Empty> answer) {
  const Result<void> paused = core.engine.pause(caller.connection->session, params.paused);
  if (!paused) {
    answer(paused.error());
    return;
  }
  answer(Empty{});
}

void buffers_allocate(Core& core, Caller& caller, AllocateParams params, Answer<AllocateAnswer> answer) {
  grant(params, answer, [&] { return core.engine.allocate(caller.connection->session, params.bytes); });
}

void buffers_adopt(Core& core, Caller& caller, AllocateParams params, Answer<AllocateAnswer> answer) {
  grant(params, answer, [&] { return core.engine.adopt(caller.connection->session, params.bytes); });
}

void buffers_register(Core& core, Caller& caller, RegisterParams params, Answer<RegisterAnswer> answer) {
  Result<std::string> handle = exported_handle(core, caller, params);
  if (!handle) {
    answer(handle.error());
    return;
  }
  core.engine.register_buffer(
      caller.connection->session,
      {std::move(params.device),
       std::move(*handle),
       params.base,
       params.allocation_bytes,
       params.offset,
       params.bytes,
       params.generation},
      [answer](const Result<engine::RegisteredBuffer>& registered) {
        if (registered) {
          answer(RegisterAnswer{registered->buffer, registered->size_bytes});
        } else {
          answer(registered.error());
        }
      }
  );
}

void ipc_probe(Core& core, Caller& caller, ProbeParams params, Answer<ProbeAnswer> answer) {
  Result<std::string> handle = exported_handle(core, caller, params);
  if (!handle) {
    answer(handle.error());
    return;
  }
  core.engine.probe_memory(
      {caller.peer.uid, caller.peer.pid},
      {std::move(params.device), std::move(*handle), 0, params.allocation_bytes, params.offset, params.bytes, 0},
      [answer](const Result<device::Probe>& probe) {
        if (probe) {
          answer(ProbeAnswer{probe->mapped_bytes, hex_of(probe->read), probe->open_s, probe->copy_s, probe->close_s});
        } else {
          answer(probe.error());
        }
      }
  );
}

void buffers_release(Core& core, Caller& caller, ReleaseParams params, Answer<Empty> answer) {
  const Result<void> released = core.engine.release(caller.connection->session, params.buffer);
  if (!released) {
    answer(released.error());
    return;
  }
  answer(Empty{});
}

}  // namespace gradsync::rpc
