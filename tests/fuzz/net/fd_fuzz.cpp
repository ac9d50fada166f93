// What comes in over the fd socket, without the socket: how the line is cut into packets, which token it holds, who
// sends it and when, and which descriptor is with it. The input is a script, one command per line:
//   allocate 4096 | adopt 4096     a grant; its token is called by its number, from 0
//   fetch 0 | fetch x              a request with that token, or with x itself, as the peer that is set
//   uid 1000 | pid 7 | wait 5000   the peer from now on; milliseconds pass
//   give none | whole | bare | short | file | last    the descriptor of later requests; last: what was fetched last
//   cut 3                          later requests come in packets of so many bytes
//   raw ...                        bytes of a request that never ends in a newline of its own
// A descriptor is given out only once, in time, and to the uid and pid that were granted it.

#include "engine/engine.hpp"
#include "engine/metrics.hpp"
#include "fakes/inline_planner.hpp"
#include "fakes/recording_lane.hpp"
#include "fuzz/fuzz.hpp"
#include "net/fd/token_line.hpp"

#include <spdlog/spdlog.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <vector>

namespace {

using namespace gradsync;  // NOLINT(google-build-using-namespace): a main file

constexpr std::uint32_t kUid = 1000;
constexpr std::int64_t kPid = 7;

std::uint64_t number_of(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

UniqueFd memory(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

class World {
 public:
  World() {
    engine_.advance(now_);
    const Result<engine::AttachResult> attached =
        engine_.attach({"j", kUid, kPid, "f", 0, 1, {{"m", {{"dp", 1}}, {}}}, 0});
    REQUIRE(attached.has_value());
    session_ = attached->session;
  }

  void run(std::string_view line) {
    std::string_view value = line;
    const std::string_view command = fuzz::next_piece(value, ' ');
    if (command == "allocate" || command == "adopt") {
      grant(command == "adopt", number_of(value));
    } else if (command == "fetch") {
      const std::uint64_t index = number_of(value);
      const bool known = !value.empty() && value.front() >= '0' && value.front() <= '9' && index < grants_.size();
      request((known ? grants_[index].token : std::string(value)) + "\n");
    } else if (command == "raw") {
      request(std::string(value));
    } else if (command == "uid") {
      uid_ = static_cast<std::uint32_t>(number_of(value));
    } else if (command == "pid") {
      pid_ = static_cast<std::int64_t>(number_of(value) % 16);
    } else if (command == "cut") {
      packet_ = static_cast<std::size_t>(number_of(value) % 128);
    } else if (command == "give") {
      give_ = std::string(value);
    } else if (command == "wait") {
      now_ += Milliseconds(static_cast<std::uint32_t>(number_of(value)));
      engine_.advance(now_);
    }
    while (!lane_.commands.empty()) {
      engine_.on_lane_report(device::kHostLane, lane_.answer_next());
    }
  }

 private:
  struct Grant {
    std::string token;
    std::uint64_t bytes = 0;
    TimePoint until;
    bool adopts = false;
    bool spent = false;
  };

  void grant(bool adopts, std::uint64_t bytes) {
    const auto granted = adopts ? engine_.adopt(session_, bytes) : engine_.allocate(session_, bytes);
    if (granted) {
      REQUIRE(granted->token.size() == 32 && granted->size_bytes == bytes);
      grants_.push_back({granted->token, bytes, now_ + engine::EngineDeadlines{}.token, adopts, false});
    }
  }

  /// As a session of the socket reads: again after every packet, until there is an answer.
  void request(const std::string& bytes) {
    std::string line;
    std::size_t read = 0;
    std::optional<Result<std::string>> token;
    while (!(token = net::read_token_line(line))) {
      if (read == bytes.size()) {
        REQUIRE(line.size() <= net::kTokenLineBytes && line.find('\n') == std::string::npos);
        return;
      }
      const std::size_t packet =
          std::min({packet_ == 0 ? bytes.size() : packet_, bytes.size() - read, net::kTokenLineBytes});
      line.append(bytes, read, packet);
      read += packet;
    }
    if (token->has_error()) {
      REQUIRE(line.size() > net::kTokenLineBytes && token->error().code == ErrorCode::BadToken);
      return;
    }
    REQUIRE(line.starts_with(**token + "\n"));
    exchange(**token);
  }

  void exchange(const std::string& token) {
    const auto found =
        std::find_if(grants_.begin(), grants_.end(), [&](const Grant& grant) { return grant.token == token; });
    const bool known =
        found != grants_.end() && !found->spent && now_ < found->until && uid_ == kUid && (pid_ == kPid || pid_ == 0);
    UniqueFd given = descriptor(found == grants_.end() ? 64 : found->bytes);
    const bool gave = given.valid();
    Result<engine::TakenFd> taken = engine_.exchange_fd(token, uid_, pid_, std::move(given));
    if (!taken) {
      REQUIRE(!taken.error().message.empty());
      REQUIRE(!known || found->adopts);
    } else {
      REQUIRE(known && taken->size_bytes == found->bytes);
      REQUIRE(taken->fd.valid() != found->adopts);
      REQUIRE(!found->adopts || gave);
    }
    if (known) {
      found->spent = true;
    }
    if (taken && taken->fd.valid()) {
      struct stat status {};

      REQUIRE(::fstat(taken->fd.get(), &status) == 0);
      REQUIRE(static_cast<std::uint64_t>(status.st_size) >= taken->size_bytes);
      last_ = std::move(taken->fd);
    }
  }

  UniqueFd descriptor(std::uint64_t bytes) {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (give_ == "whole") {
      return memory(bytes, kSeals);
    }
    if (give_ == "bare") {
      return memory(bytes, F_SEAL_SHRINK);
    }
    if (give_ == "short") {
      return memory(bytes / 2, kSeals);
    }
    if (give_ == "file") {
      return UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    }
    return give_ == "last" && last_.valid() ? UniqueFd(::fcntl(last_.get(), F_DUPFD_CLOEXEC, 0)) : UniqueFd{};
  }

  static engine::EngineOptions options() {
    engine::EngineOptions options;
    options.limits.arena_bytes = 1u << 16;
    options.limits.buffers_per_session = 8;
    return options;
  }

  TimePoint now_{};
  prometheus::Registry registry_;
  engine::EngineMetrics metrics_{registry_};
  fakes::RecordingLane lane_;
  fakes::InlinePlanner planner_;
  engine::Engine engine_{options(), engine::Lanes(lane_), planner_, [](const engine::Event&) {}, metrics_};
  engine::SessionId session_ = 0;
  std::vector<Grant> grants_;
  std::uint32_t uid_ = kUid;
  std::int64_t pid_ = kPid;
  std::size_t packet_ = 0;
  std::string give_;
  UniqueFd last_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool kQuiet = (spdlog::set_level(spdlog::level::off), true);
  static_cast<void>(kQuiet);
  std::string_view rest = fuzz::text_of(data, size);
  World world;
  for (int lines = 0; !rest.empty() && lines < 64; ++lines) {
    world.run(fuzz::next_piece(rest, '\n'));
  }
  return 0;
}
