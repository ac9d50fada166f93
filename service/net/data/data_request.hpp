#pragma once
// The request that opens a data connection: GET /peer/data with an upgrade to another protocol than HTTP, and headers
// that say what the connection is for. Pure. Internal to net.

#include "net/data_types.hpp"
#include "net/http/refusals.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace gradsync::net {

inline constexpr std::string_view kDataPath = "/peer/data";
inline constexpr std::string_view kDataProtocol = "gradsync.data.v1";

/// What there is of a request, beside its path.
struct DataRequest {
  bool is_get = false;
  bool upgrades = false;         ///< `Connection` has "upgrade"
  std::string_view protocol;     ///< `Upgrade`
  std::size_t bytes_behind = 0;  ///< that came along with it
  /// The value of a header; none where it is not there exactly once.
  std::function<std::optional<std::string_view>(std::string_view name)> header;
};

[[nodiscard]] std::variant<DataLinkHello, Refusal> read_data_request(const DataRequest& request);

/// Names and values, all but those of the upgrade and the token.
[[nodiscard]] std::vector<std::pair<std::string_view, std::string>> data_headers(const DataLinkHello& hello);

}  // namespace gradsync::net
