#pragma once

#include "app/cli/exit_code.hpp"
#include "net/server.hpp"

namespace gradsync::app {

[[nodiscard]] inline ExitCode exit_code_of(const net::StartFailure& failure) {
  switch (failure.kind) {
    case net::StartFailure::Kind::InUse:
      return kExitTryAgain;
    case net::StartFailure::Kind::Configuration:
      return kExitConfiguration;
    case net::StartFailure::Kind::System:
      return kExitUnavailable;
  }
  return kExitInternal;
}

}  // namespace gradsync::app
