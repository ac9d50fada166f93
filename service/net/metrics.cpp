#include "net/metrics.hpp"

namespace gradsync::net {

namespace {

prometheus::Counter& counter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Counter& refused(prometheus::Registry& registry, const char* reason) {
  auto& family = prometheus::BuildCounter()
                     .Name("gradsync_connections_refused_total")
                     .Help("Connections refused, by reason.")
                     .Register(registry);
  return family.Add({{"reason", reason}});
}

}  // namespace

NetMetrics::NetMetrics(prometheus::Registry& registry)
    : connections(prometheus::BuildGauge()
                      .Name("gradsync_connections")
                      .Help("Open connections of all listeners.")
                      .Register(registry)
                      .Add({})),
      accepted(counter(registry, "gradsync_connections_accepted_total", "Connections accepted by all listeners.")),
      refused_uid(refused(registry, "uid")),
      refused_token(refused(registry, "token")),
      refused_limit(refused(registry, "limit")),
      slow_readers(
          counter(registry, "gradsync_slow_readers_total", "Connections closed because their write queue was full.")
      ),
      accept_pauses(
          counter(registry, "gradsync_accept_pauses_total", "Times accepting paused for want of file descriptors.")
      ),
      received_bytes(counter(registry, "gradsync_received_bytes_total", "Payload bytes of WebSocket messages received.")
      ),
      sent_bytes(counter(registry, "gradsync_sent_bytes_total", "Payload bytes of WebSocket messages written.")),
      read_pauses(counter(
          registry,
          "gradsync_read_pauses_total",
          "Times a connection was read later, because its process used more than its share."
      )),
      io_watch(registry) {}

}  // namespace gradsync::net
