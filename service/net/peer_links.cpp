#include "net/peer_links.hpp"

#include "net/data/data_connector.hpp"
#include "net/peer/link_context.hpp"
#include "net/peer/peer_connector.hpp"
#include "net/peer/peer_link.hpp"

#include <utility>

namespace gradsync::net {

namespace {

constexpr const char* kShutDown = "this daemon is shutting down";

std::shared_ptr<PeerLink> find_link(const LinkContext& context, LinkId link) {
  const auto found = context.links.find(link);
  return found == context.links.end() ? nullptr : found->second;
}

/// One that is not open yet.
void stop_connecting(LinkContext& context, LinkId link, const char* why) {
  const auto found = context.diallers.find(link);
  if (found != context.diallers.end()) {
    const std::shared_ptr<Dialler> dialler = found->second;
    dialler->stop(why);
  }
}

void start(LinkContext& context, const std::shared_ptr<Dialler>& dialler, LinkId id) {
  context.diallers.emplace(id, dialler);
  if (context.closing_all) {
    dialler->stop(kShutDown);
  } else {
    dialler->start();
  }
}

}  // namespace

PeerLinks::PeerLinks(boost::asio::io_context& io, PeerOptions options, PeerSink& sink, NetMetrics& metrics)
    : context_(std::make_shared<LinkContext>(io, std::move(options), sink, metrics)) {}

PeerLinks::~PeerLinks() {
  // Links hold the context and the context holds them. Those that never ended, because the io context was stopped, are
  // now held by their coroutines alone, which end with the io context.
  context_->resolver.stop();
  context_->links.clear();
  context_->diallers.clear();
}

void PeerLinks::use_token(std::string token) { context_->token = std::move(token); }

LinkId PeerLinks::connect(std::string address) {
  const LinkId link = ++context_->last_id;
  start(*context_, std::make_shared<PeerConnector>(context_, link, std::move(address)), link);
  return link;
}

LinkId PeerLinks::connect_data(std::string address, DataLinkHello hello) {
  const LinkId id = ++context_->last_id;
  start(*context_, std::make_shared<DataConnector>(context_, id, std::move(address), std::move(hello)), id);
  return id;
}

void PeerLinks::send(LinkId link, std::string text) {
  if (const auto open = find_link(*context_, link)) {
    open->send(std::move(text));
  }
}

void PeerLinks::joined(LinkId link) {
  if (const auto open = find_link(*context_, link)) {
    open->joined();
  }
}

void PeerLinks::close(LinkId link) {
  if (const auto open = find_link(*context_, link)) {
    open->close();
  } else {
    stop_connecting(*context_, link, "this daemon closed it");
  }
}

void PeerLinks::drop(LinkId link) {
  if (const auto open = find_link(*context_, link)) {
    open->drop("this daemon dropped it");
  } else {
    stop_connecting(*context_, link, "this daemon dropped it");
  }
}

void PeerLinks::close_all() {
  context_->closing_all = true;
  const auto links = context_->links;  // they leave the maps as they end
  for (const auto& [id, link] : links) {
    link->go_away();
  }
  const auto diallers = context_->diallers;
  for (const auto& [id, dialler] : diallers) {
    dialler->stop(kShutDown);
  }
}

}  // namespace gradsync::net
