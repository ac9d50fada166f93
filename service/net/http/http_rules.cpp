#include "net/http/http_rules.hpp"

#include <algorithm>
#include <cstddef>

namespace gradsync::net {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) {
    text.remove_prefix(1);
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) {
    text.remove_suffix(1);
  }
  return text;
}

}  // namespace

Target split_target(std::string_view target) {
  const std::size_t question = target.find('?');
  if (question == std::string_view::npos) {
    return {target, {}};
  }
  return {target.substr(0, question), target.substr(question + 1)};
}

bool is_json_content_type(std::string_view content_type) {
  const std::string_view type = trim(content_type.substr(0, content_type.find(';')));
  return equal_ignoring_case(type, "application/json") || equal_ignoring_case(type, "application/json-rpc");
}

bool offers_subprotocol(std::string_view offered, std::string_view protocol) {
  while (!offered.empty()) {
    const std::size_t comma = offered.find(',');
    if (trim(offered.substr(0, comma)) == protocol) {
      return true;
    }
    offered = comma == std::string_view::npos ? std::string_view{} : offered.substr(comma + 1);
  }
  return false;
}

bool origin_matches_host(std::string_view origin, std::string_view host) {
  const std::size_t scheme_end = origin.find("://");
  return scheme_end != std::string_view::npos && !host.empty() &&
         equal_ignoring_case(origin.substr(scheme_end + 3), host);
}

bool is_loopback_host(std::string_view host) {
  if (host.empty()) {
    return true;  // HTTP/1.0; a browser sends one
  }
  if (host.front() == '[') {
    return host.find(']') != std::string_view::npos;
  }
  const std::string_view name = host.substr(0, host.find(':'));
  const bool is_ip = !name.empty() && name.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_ip || equal_ignoring_case(name, "localhost");
}

bool constant_time_equal(std::string_view a, std::string_view b) {
  if (b.empty()) {
    return a.empty();
  }
  volatile unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<unsigned char>(
        difference | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i % b.size()]))
    );
  }
  return difference == 0;
}

bool bearer_matches(std::string_view authorization, std::string_view token) {
  constexpr std::string_view kScheme = "bearer ";
  if (token.empty() || authorization.size() < kScheme.size() ||
      !equal_ignoring_case(authorization.substr(0, kScheme.size()), kScheme)) {
    return false;
  }
  return constant_time_equal(trim(authorization.substr(kScheme.size())), token);
}

}  // namespace gradsync::net
