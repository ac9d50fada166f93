#pragma once
// Joins links to the ports of jobs: which job a link is for, texts to messages and back, time for the machines, and
// what they want sent, once the turn that wanted it is over. It decides nothing about a job.
//
// An accepted link says with its JOIN which job it is for. Where rank 0 of that job is not here yet, the JOIN waits as
// long as a declaration may. Thread: io.

#include "app/daemon/engine_clock.hpp"
#include "app/peer/data_links.hpp"
#include "app/peer/peer_port.hpp"
#include "net/peer_links.hpp"
#include "rpc/peer/peer_codec.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gradsync::app {

class PeerBridge final : public net::PeerSink, public PeerPort::Owner, private DataDialling {
 public:
  struct Options {
    std::string listen;       ///< of this daemon; its port is that of an address without one
    std::string endpoint;     ///< that is bound, which the roster of a job says; empty: `use_endpoint` follows
    std::string node;         ///< name of this node, at most 64 bytes
    std::string node_id;      ///< 32 hex digits, equal before and after a restart
    std::string incarnation;  ///< 16 hex digits
    Milliseconds wait_for_job{300'000};
    std::uint64_t first_epoch = 1;
    bool apart = false;  ///< GPUs of this node do not reach each other's memory: it is several sites by itself
  };

  PeerBridge(boost::asio::io_context& io, Options options);

  /// Where the listener for other daemons is bound, HOST:PORT. Before any job.
  void use_endpoint(std::string endpoint) { options_.endpoint = std::move(endpoint); }

  /// These exist only after the bridge.
  void connect(net::PeerLinks& links, engine::Engine& engine, EngineClock& clock);

  /// For `EngineOptions::make_peers`. Null where all ranks of the job are on this node, and it is one site.
  [[nodiscard]] std::unique_ptr<engine::Peers> make_port(engine::JobNumber job, const engine::AttachRequest& first);

  /// After every turn of the engine: sends what the turn left to be sent.
  void after_turn();

  /// No turn begins any more.
  void stop();

  // net::PeerSink
  void on_link(net::LinkId link, const net::LinkEnds& ends) override;
  void on_text(net::LinkId link, std::string_view text) override;
  void on_end(net::LinkId link, const std::string& why) override;
  void on_data_link(net::DataLink link) override;
  void on_data_connected(net::LinkId id, UniqueFd socket) override;
  void on_data_failed(net::LinkId id, const std::string& why) override;

  // PeerPort::Owner
  void on_told(engine::JobNumber job) override;
  void on_gone(engine::JobNumber job) override;

 private:
  struct Seat {
    Seat(boost::asio::io_context& io, PeerPort& of_job) : port(&of_job), timer(io) {}

    PeerPort* port;
    boost::asio::steady_timer timer;
    std::optional<TimePoint> armed = {};  ///< a later deadline keeps an earlier alarm: it then fires for nothing
    net::LinkId own_link = 0;             ///< to the coordinator, until the machine has heard that it ended; 0: none
    bool told = false;                    ///< it is in `told_`
    bool coordinates = false;             ///< JOINs that waited for it are assigned
    bool replaced = false;                ///< a later job has the name, and the links: this one only comes to its end
  };

  /// An accepted link.
  struct Accepted {
    std::string seen_address;
    engine::JobNumber job = 0;  ///< 0: it has not joined, or its job is not here yet
    std::optional<engine::PeerJoin> join = {};
    std::optional<engine::PeerPause> pause = {};  ///< that came behind the JOIN
    std::optional<TimePoint> until = {};          ///< its job has to be here
  };

  [[nodiscard]] Seat* seat_of(engine::JobNumber job);
  [[nodiscard]] Seat* coordinator_of(const engine::JobKey& key);
  void tell(engine::JobNumber job, engine::PeerEvents events);

  template <typename Work>
  void turn(const char* what, Work&& work) {
    if (!stopped_) {
      clock_->turn(what, std::forward<Work>(work));
    }
  }

  void replace_earlier(const engine::JobKey& key);
  void send_outgoing(engine::JobNumber job, Seat& seat);
  [[nodiscard]] std::string with_port(const std::string& address) const;
  void open(engine::JobNumber job, Seat& seat, const std::string& address);
  void arm(engine::JobNumber job, Seat& seat);
  void send(net::LinkId link, Result<std::string> text);

  // links (peer_bridge_links.cpp)
  void on_accepted_text(net::LinkId link, Accepted& accepted, std::string_view text);
  void on_first_message(net::LinkId link, Accepted& accepted, engine::ToCoordinator message);
  void assign(net::LinkId link, Accepted& accepted, Seat& seat, engine::JobNumber job);
  [[nodiscard]] bool is_own(const engine::PeerJoin& join) const;
  void assign_waiting(const engine::JobKey& key);
  void wait_for_job(net::LinkId link, Accepted& accepted);
  void refuse_overdue();
  void refuse(net::LinkId link, const Error& error);
  void end_link(net::LinkId link, const std::string& why);
  void end_own_link(engine::JobNumber job, net::LinkId link, const std::string& why);

  // data connections (peer_bridge_data.cpp)
  net::LinkId dial(const std::string& address, const net::DataLinkHello& hello) override;
  void drop(net::LinkId dial) override;
  void open_data_links(engine::JobNumber job, const Seat& seat, engine::OpenDataLinks wanted);
  void give(std::optional<DataVerdict> verdict);
  void arm_data();

  boost::asio::io_context& io_;
  Options options_;
  DataLinks data_;
  net::PeerLinks* links_ = nullptr;
  engine::Engine* engine_ = nullptr;
  EngineClock* clock_ = nullptr;
  rpc::PeerReader reader_;
  std::map<engine::JobNumber, Seat> seats_;
  std::map<net::LinkId, Accepted> accepted_;
  std::map<net::LinkId, engine::JobNumber> opened_;
  std::vector<engine::JobNumber> told_;
  std::vector<net::LinkId> orphans_;   ///< links of jobs that have ended
  boost::asio::steady_timer waiting_;  ///< for the first JOIN that has waited long enough
  boost::asio::steady_timer data_due_;
  std::optional<TimePoint> data_armed_;  ///< a later deadline keeps an earlier alarm
  bool stopped_ = false;
};

}  // namespace gradsync::app
