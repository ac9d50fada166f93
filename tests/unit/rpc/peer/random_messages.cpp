// Random messages within the bounds of docs/peer-protocol.md, as different as these allow.

#include "peer_samples.hpp"
#include "random_values.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace gradsync::rpc {

namespace {

using engine::Ask;
using engine::DeclaredRanks;
using engine::NodeCells;
using engine::NodeDeclared;
using engine::NodeFindings;
using engine::PeerAbort;
using engine::PeerAsk;
using engine::PeerBeat;
using engine::PeerBegin;
using engine::PeerCompare;
using engine::PeerConnect;
using engine::PeerConnected;
using engine::PeerDecision;
using engine::PeerDeclaration;
using engine::PeerDone;
using engine::PeerEnd;
using engine::PeerFail;
using engine::PeerHello;
using engine::PeerJoin;
using engine::PeerLeave;
using engine::PeerMissing;
using engine::PeerOverdue;
using engine::PeerPause;
using engine::PeerPolicies;
using engine::PeerPrepare;
using engine::PeerReady;
using engine::PeerRefused;
using engine::PeerRows;
using engine::PeerRuling;
using engine::PeerSettings;
using engine::PeerVote;
using engine::PeerWant;
using engine::PeerWho;
using engine::RankSpan;
using engine::ToCoordinator;
using engine::ToMember;
using engine::Verdict;
using engine::WeightFingerprints;

class RandomMessages : private RandomValues {
 public:
  explicit RandomMessages(std::uint64_t seed) : RandomValues(seed) {}

  void fill(PeerJoin& join) {
    join.challenge = bits_();
    join.count = 1 + static_cast<std::uint32_t>(below(0xFFFF'FFFF));
    join.job = {static_cast<std::uint32_t>(bits_()), text(1, 256)};
    join.restart_count = natural();
    join.world_size = 1 + below(4096);
    join.meshes = {{text(1, 20), {{text(1, 20), join.world_size}}, {}}, {text(1, 20), {}, {text(1, 20)}}};
    join.node = text(1, 64);
    join.node_id = hex(32);
    join.incarnation = hex(16);
    join.address = text(1, 64);
    join.epoch = coin() ? 0 : epoch();
    join.ranks = ranks_below(join.world_size);
    const auto count = std::max<std::int64_t>(static_cast<std::int64_t>(join.ranks.size()), 1);
    join.local_world_size = count + below(join.world_size - count + 1);
    join.listen = coin() ? "" : text(1, 64);
    join.port = port();
    join.words = {coin() ? 0 : bits_(), bits_(), coin()};
    if (coin()) {
      NodeDeclared& declared = join.declared.emplace();
      declared.weight_fingerprints = fingerprints();
      declared.by_content = contents(join.ranks, declared.weight_fingerprints.size());
      declared.settings = settings();
      declared.devices = devices(join.ranks.size());
    }
  }

  void fill(PeerReady& ready) {
    ready = {epoch(), hex(16), hex(16), coin(), {}};
    if (coin()) {
      device::LoadedCommunicators& loaded = ready.communicators.emplace();
      loaded.version = static_cast<int>(1 + below(0x7FFF'FFFF));
      for (std::int64_t left = below(33); left > 0; --left) {
        device::CommunicatorOffer& offer = loaded.offers.emplace_back();
        offer.name = text(1, 128);
        offer.members = static_cast<std::uint32_t>(2 + below(4095));
        offer.own = static_cast<std::uint32_t>(below(4096));
        offer.instance = coin() ? std::optional(bits_()) : std::nullopt;
        offer.id = unique_id();
      }
    }
  }

  void fill(PeerConnected& connected) { connected.epoch = epoch(); }

  void fill(PeerLeave& leave) { leave = {epoch(), error()}; }

  void fill(PeerAsk& ask) {
    ask.word = word();
    ask.terms.kind = static_cast<Ask::Kind>(below(4));
    ask.terms.step = static_cast<std::int64_t>(bits_());
    ask.terms.scale = positive();
    ask.terms.scaled = coin();
    ask.terms.abandon = coin();
    ask.terms.override_max_norm = coin();
    if (coin()) {
      ask.terms.max_norm = coin() ? 0 : coin() ? std::numeric_limits<double>::infinity() : positive();
    }
    ask.terms.state_digest = ask.terms.kind == Ask::Kind::Import ? hex(16) : "";
    ask.policy_digest = hex(16);
    if (ask.terms.kind == Ask::Kind::Finish || ask.terms.kind == Ask::Kind::NormOnly) {
      for (std::int64_t left = below(4); left >= 0; --left) {
        ask.sites.push_back({cells(), findings(), words()});
      }
    }
  }

  void fill(PeerRows& rows) {
    rows.word = word();
    rows.site = static_cast<std::uint32_t>(below(4096));
    if (coin()) {
      rows.box_hashes = words();
      return;
    }
    for (std::int64_t box = 0, boxes = below(65); box < boxes; ++box) {
      const std::uint32_t tensor = index();
      for (std::int64_t holder = below(4); holder >= 0; --holder) {
        rows.rows.push_back({tensor, static_cast<std::uint32_t>(box), below(4096), row()});
      }
    }
  }

  void fill(PeerVote& vote) { vote = {word(), hex(16)}; }

  void fill(PeerFail& fail) { fail = {word(), error()}; }

  void fill(PeerOverdue& overdue) { overdue = {word(), coin(), static_cast<std::int64_t>(bits_()), positive()}; }

  void fill(PeerMissing& missing) { missing = {word(), ranks_below(4096), names(20), text(0, 4096)}; }

  void fill(PeerHello& hello) { hello = {bits_(), hex(16), text(1, 64), 1, text(1, 64), text(1, 64)}; }

  void fill(PeerRefused& refused) { refused.error = error(); }

  void fill(PeerPrepare& prepare) {
    prepare.epoch = epoch();
    prepare.coordinator = hex(16);
    prepare.settings = settings();
    prepare.weight_fingerprints = fingerprints();
    std::vector<std::vector<std::int64_t>> nodes(static_cast<std::size_t>(1 + below(256)));
    for (std::int64_t rank = 0, world_size = 1 + below(4096); rank < world_size; ++rank) {
      nodes[static_cast<std::size_t>(below(static_cast<std::int64_t>(nodes.size())))].push_back(rank);
    }
    std::erase_if(nodes, [](const std::vector<std::int64_t>& ranks) { return ranks.empty(); });
    std::sort(nodes.begin(), nodes.end());
    for (const std::vector<std::int64_t>& ranks : nodes) {
      prepare.roster.own().push_back(
          {text(1, 64),
           text(1, 64),
           hex(16),
           contents(ranks, prepare.weight_fingerprints.size()),
           port(),
           devices(ranks.size())}
      );
    }
  }

  void fill(PeerRuling& ruling) { ruling = {word(), static_cast<Verdict>(below(3))}; }

  void fill(PeerConnect& connect) {
    connect.epoch = epoch();
    for (std::int64_t left = below(33); left > 0; --left) {
      connect.communicators.push_back({text(1, 128), bits_(), unique_id()});
    }
  }

  void fill(PeerBegin& begin) { begin.epoch = epoch(); }

  void fill(PeerEnd& end) { end = {epoch(), coin() ? 0 : word(), error()}; }

  void fill(PeerCompare& compare) {
    compare.word = word();
    if (coin()) {
      for (std::int64_t left = below(100); left >= 0; --left) {
        compare.classes.push_back(index());
      }
    } else {
      for (std::int64_t left = below(64); left >= 0; --left) {
        compare.boxes.emplace_back(index(), index());
      }
    }
  }

  void fill(PeerDecision& decision) {
    decision.word = word();
    if (coin()) {
      decision.cells = cells();
    }
    decision.findings = findings();
    decision.sums_differ = coin();
  }

  void fill(PeerDone& done) { done.word = word(); }

  void fill(PeerAbort& abort) { abort = {word(), error()}; }

  void fill(PeerWho& who) { who.word = word(); }

  void fill(PeerWant& want) {
    for (std::int64_t left = below(50); left >= 0; --left) {
      want.hashes.push_back(hex(32));
    }
  }

  void fill(PeerPolicies& policies) {
    policies.epoch = epoch();
    if (coin()) {
      policies.pages = 1 + static_cast<std::uint32_t>(below(256));
      policies.page = static_cast<std::uint32_t>(below(policies.pages));
      for (std::int64_t left = below(1000); left >= 0; --left) {
        policies.state += static_cast<char>(bits_());
      }
    }
  }

  void fill(PeerDeclaration& declaration) {
    declaration.hash = hex(32);
    declaration.pages = 1 + static_cast<std::uint32_t>(below(256));
    declaration.page = static_cast<std::uint32_t>(below(declaration.pages));
    declaration.options = options();
    for (std::int64_t left = below(20); left > 0; --left) {
      declaration.tensors.push_back(tensor());
    }
  }

  void fill(PeerPause& pause) { pause.ranks = ranks_below(4096); }

  void fill(PeerBeat&) {}

 private:
  /// One for each rank, or none.
  std::vector<std::uint32_t> devices(std::size_t ranks) {
    std::vector<std::uint32_t> found(coin() ? 0 : ranks);
    std::ranges::generate(found, [this] { return static_cast<std::uint32_t>(below(8)); });
    return found;
  }

  std::vector<DeclaredRanks> contents(const std::vector<std::int64_t>& ranks, std::size_t lists) {
    std::vector<DeclaredRanks> contents(static_cast<std::size_t>(1 + below(3)));
    for (const std::int64_t rank : ranks) {
      std::vector<RankSpan>& spans =
          contents[static_cast<std::size_t>(below(static_cast<std::int64_t>(contents.size())))].ranks;
      if (!spans.empty() && spans.back().first + spans.back().second == rank) {
        ++spans.back().second;
      } else {
        spans.emplace_back(rank, 1);
      }
    }
    std::erase_if(contents, [](const DeclaredRanks& declared) { return declared.ranks.empty(); });
    for (DeclaredRanks& declared : contents) {
      declared.hash = hex(32);
      if (lists > 0 && coin()) {
        declared.weights = static_cast<std::uint32_t>(below(static_cast<std::int64_t>(lists)));
      }
    }
    return contents;
  }

  std::uint16_t port() { return static_cast<std::uint16_t>(1 + below(65'535)); }

  std::vector<WeightFingerprints> fingerprints() {
    std::vector<WeightFingerprints> lists(static_cast<std::size_t>(below(4)));
    for (WeightFingerprints& list : lists) {
      for (std::int64_t left = below(20); left >= 0; --left) {
        list.push_back(text(0, 64));
      }
    }
    return lists;
  }

  PeerSettings settings() { return {bits_(), bits_(), natural(), bits_(), coin() ? "" : text(1, 16)}; }

  std::optional<device::NcclUniqueId> unique_id() {
    std::optional<device::NcclUniqueId> id;
    if (coin()) {
      std::ranges::generate(id.emplace().bytes, [this] { return static_cast<char>(bits_()); });
    }
    return id;
  }

  device::TensorSum sum() { return {{any_double(), any_double()}, any_double(), any_double(), bits_(), bits_()}; }

  std::vector<device::TensorSum> sums(std::int64_t most) {
    std::vector<device::TensorSum> sums;
    for (std::int64_t left = below(most + 1); left > 0; --left) {
      sums.push_back(sum());
    }
    return sums;
  }

  NodeCells cells() { return {sum(), sums(5), sums(50), bits_()}; }

  device::StatsRow row() {
    return {bits_(), any_double(), any_double(), any_double(), any_double(), bits_(), bits_(), bits_()};
  }

  NodeFindings findings() {
    NodeFindings findings;
    for (std::int64_t left = below(coin() ? 65 : 3); left > 0; --left) {
      device::NonfiniteFinding& nonfinite = findings.nonfinite.emplace_back();
      nonfinite.tensor = index();
      nonfinite.count = bits_();
      for (const std::int64_t rank : ranks_below(4096)) {
        nonfinite.inputs.emplace_back(rank, bits_() >> below(64));
      }
      findings.divergence.push_back({index(), rank_list(), rank_list(), rank_list()});
      findings.missing.push_back({index(), rank_list()});
    }
    findings.nonfinite_total = bits_();
    std::uint32_t tensor = 0;
    for (std::int64_t left = below(10); left > 0; --left) {
      const auto first = tensor + static_cast<std::uint32_t>(below(1000));
      const auto count = 1 + static_cast<std::uint32_t>(below(1000));
      findings.absent.emplace_back(first, count);
      tensor = first + count;
    }
    return findings;
  }

  Error error() {
    Error error = make_error(
        static_cast<ErrorCode>(below(static_cast<std::int64_t>(ErrorCode::UnknownSubscription) + 1)),
        text(0, 8192),
        text(0, 1024)
    );
    error.path = text(0, 1024);
    error.job = text(0, 256);
    error.tensor = text(0, 512);
    error.node = text(0, 64);
    error.ranks = rank_list();
    error.tensors = names(20);
    error.rank = maybe(below(4096));
    error.step = maybe(static_cast<std::int64_t>(bits_()));
    error.bucket = maybe(natural());
    error.epoch = maybe(bits_());
    error.attempt = maybe(bits_() >> below(64));
    error.waited_s = maybe(coin() ? positive() : -0.0);
    return error;
  }
};

template <typename Direction, std::size_t... Kinds>
Direction message_of(std::size_t kind, std::index_sequence<Kinds...>) {
  Direction message;
  ((kind == Kinds ? static_cast<void>(message.template emplace<Kinds>()) : void()), ...);
  return message;
}

template <typename Direction>
Direction random_message(std::size_t kind, std::uint64_t seed) {
  Direction message = message_of<Direction>(kind, std::make_index_sequence<std::variant_size_v<Direction>>());
  RandomMessages messages(seed * 64 + kind);
  std::visit([&](auto& value) { messages.fill(value); }, message);
  return message;
}

}  // namespace

ToCoordinator random_to_coordinator(std::size_t kind, std::uint64_t seed) {
  return random_message<ToCoordinator>(kind, seed);
}

ToMember random_to_member(std::size_t kind, std::uint64_t seed) { return random_message<ToMember>(kind, seed); }

}  // namespace gradsync::rpc
