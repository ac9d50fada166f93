#include "net/http/tokens.hpp"

#include "net/http/http_rules.hpp"

#include <fmt/format.h>

namespace gradsync::net {

namespace {

constexpr const char* kFull = "[server] tcp_token_file";
constexpr const char* kReading = "[server] tcp_read_token_file";

std::optional<TokenFile> file_of(const std::string& path, const char* setting) {
  return path.empty() ? std::nullopt : std::optional<TokenFile>(std::in_place, path, setting);
}

}  // namespace

Tokens::Tokens(const ServerOptions& options)
    : full_(file_of(options.tcp_token_file, kFull)), reading_(file_of(options.tcp_read_token_file, kReading)) {}

std::optional<StartFailure> Tokens::start() {
  for (std::optional<TokenFile>* file : {&full_, &reading_}) {
    if (!*file) {
      continue;
    }
    if (auto failure = (*file)->start(fmt::format("leave {} empty", (*file)->setting()))) {
      return failure;
    }
  }
  if (full_ && reading_ && full_->token() == reading_->token()) {
    return StartFailure{
        StartFailure::Kind::Configuration,
        fmt::format("{} and {} have the same token: a reader could change things", kFull, kReading),
        "make another one: gradsyncd token new --out FILE --force"};
  }
  return std::nullopt;
}

TokenRole Tokens::role_of(std::string_view authorization) {
  const bool reads = reading_ && bearer_matches(authorization, reading_->token());
  const bool changes = full_ && bearer_matches(authorization, full_->token());
  // Files that came to have the same token: the holder may be a reader.
  return reads ? TokenRole::Reader : changes ? TokenRole::Operator : TokenRole::None;
}

std::uint64_t Tokens::generation() const {
  return (full_ ? full_->generation() : 0) + (reading_ ? reading_->generation() : 0);
}

std::uint64_t Tokens::generation_now() {
  for (std::optional<TokenFile>* file : {&full_, &reading_}) {
    if (*file) {
      (*file)->look();
    }
  }
  return generation();
}

std::string Tokens::settings() const {
  if (full_ && reading_) {
    return fmt::format("{}, or with that of {} to read only", kFull, kReading);
  }
  return reading_ ? kReading : kFull;
}

}  // namespace gradsync::net
