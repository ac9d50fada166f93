#include "base/text/host_port.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <netinet/in.h>

namespace gradsync {

namespace {

constexpr std::size_t kLongestName = 253;
constexpr std::size_t kLongestScope = 15;
constexpr std::uint32_t kHighestPort = 65535;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_of_name(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

bool consists_of_names(std::string_view text) { return std::all_of(text.begin(), text.end(), is_of_name); }

/// With a scope where there is one, as in "fe80::1%eth0".
bool is_ipv6(std::string_view text) {
  const std::size_t percent = text.find('%');
  if (percent != std::string_view::npos) {
    const std::string_view scope = text.substr(percent + 1);
    if (scope.empty() || scope.size() > kLongestScope || !consists_of_names(scope)) {
      return false;
    }
  }
  const std::string address{text.substr(0, percent)};
  in6_addr ignored{};
  return address.find('\0') == std::string::npos && ::inet_pton(AF_INET6, address.c_str(), &ignored) == 1;
}

std::optional<std::uint16_t> parse_port(std::string_view text) {
  constexpr std::size_t kMostDigits = 5;
  if (text.empty() || text.size() > kMostDigits || !std::all_of(text.begin(), text.end(), is_digit)) {
    return std::nullopt;
  }
  std::uint32_t port = 0;
  for (const char c : text) {
    port = port * 10 + static_cast<std::uint32_t>(c - '0');
  }
  return port > kHighestPort ? std::nullopt : std::optional(static_cast<std::uint16_t>(port));
}

std::optional<HostPort> with_port(std::string_view host, std::string_view port_text) {
  const auto port = parse_port(port_text);
  return port ? std::optional(HostPort{std::string(host), port}) : std::nullopt;
}

/// "[::1]" or "[::1]:9478".
std::optional<HostPort> parse_bracketed(std::string_view text) {
  const std::size_t end = text.find(']');
  if (end == std::string_view::npos || !is_ipv6(text.substr(1, end - 1))) {
    return std::nullopt;
  }
  const std::string_view host = text.substr(1, end - 1);
  const std::string_view behind = text.substr(end + 1);
  if (behind.empty()) {
    return HostPort{std::string(host), std::nullopt};
  }
  return behind.front() == ':' ? with_port(host, behind.substr(1)) : std::nullopt;
}

}  // namespace

std::optional<HostPort> parse_host_port(std::string_view text) {
  if (text.starts_with('[')) {
    return parse_bracketed(text);
  }
  const std::size_t colon = text.find(':');
  if (colon != std::string_view::npos && text.find(':', colon + 1) != std::string_view::npos) {
    return is_ipv6(text) ? std::optional(HostPort{std::string(text), std::nullopt}) : std::nullopt;
  }
  const std::string_view host = text.substr(0, colon);
  if (host.empty() || host.size() > kLongestName || !consists_of_names(host)) {
    return std::nullopt;
  }
  return colon == std::string_view::npos ? HostPort{std::string(host), std::nullopt}
                                         : with_port(host, text.substr(colon + 1));
}

std::string join_host_port(std::string_view host, std::uint16_t port) {
  const bool ipv6 = host.find(':') != std::string_view::npos;
  return ipv6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

}  // namespace gradsync
