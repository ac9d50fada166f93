#include "net/data/data_request.hpp"

#include "base/text/hash.hpp"

#include <boost/beast/http/status.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace gradsync::net {

namespace {

using boost::beast::http::status;

constexpr std::string_view kJob = "Gradsync-Job";
constexpr std::string_view kUid = "Gradsync-Uid";
constexpr std::string_view kEpoch = "Gradsync-Epoch";
constexpr std::string_view kPayload = "Gradsync-Payload";
constexpr std::string_view kFrom = "Gradsync-From";
constexpr std::string_view kTo = "Gradsync-To";
constexpr std::string_view kPartials = "partials";
constexpr std::string_view kResults = "results";
constexpr std::size_t kMostJobBytes = 256;
constexpr std::size_t kIncarnationDigits = 16;
constexpr std::size_t kShownBytes = 40;  // of a value that is refused

Refusal refused_with(status code, std::string text) { return {static_cast<int>(code), std::move(text)}; }

bool is_lower_hex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// Digits alone, without a leading zero, so that a number has one spelling.
template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  return whole && (text == "0" || !text.starts_with('0')) ? std::optional(number) : std::nullopt;
}

/// Takes headers one by one; the first that is wrong is named.
class HeaderReader {
 public:
  explicit HeaderReader(const DataRequest& request) : request_(request) {}

  std::string job() {
    const std::string_view digits = value_of(kJob);
    std::optional<std::string> name = is_lower_hex(digits) ? bytes_of_hex(digits) : std::nullopt;
    const bool fits = name && !name->empty() && name->size() <= kMostJobBytes;
    expect(fits, kJob, digits, "the name of a job of 1 to 256 bytes, two lower-case hex digits for each");
    return fits ? std::move(*name) : std::string();
  }

  template <typename Number>
  Number number(std::string_view header, Number least, Number most) {
    const std::string_view text = value_of(header);
    const std::optional<Number> number = number_of<Number>(text);
    const bool fits = number && *number >= least && *number <= most;
    expect(fits, header, text, fmt::format("a number from {} to {}", least, most));
    return number.value_or(0);
  }

  DataPayload payload() {
    const std::string_view text = value_of(kPayload);
    expect(text == kPartials || text == kResults, kPayload, text, "\"partials\" or \"results\"");
    return text == kResults ? DataPayload::Results : DataPayload::Partials;
  }

  std::string incarnation(std::string_view header) {
    const std::string_view text = value_of(header);
    expect(text.size() == kIncarnationDigits && is_lower_hex(text), header, text, "16 lower-case hex digits");
    return std::string(text);
  }

  [[nodiscard]] const std::string& fault() const { return fault_; }

 private:
  std::string_view value_of(std::string_view header) {
    const std::optional<std::string_view> value = request_.header(header);
    if (!value && fault_.empty()) {
      fault_ = fmt::format("the header {} has to be there once", header);
    }
    return value.value_or(std::string_view{});
  }

  void expect(bool fits, std::string_view header, std::string_view found, std::string_view expected) {
    if (!fits && fault_.empty()) {
      fault_ = fmt::format("the header {} is '{}'; expected {}", header, found.substr(0, kShownBytes), expected);
    }
  }

  const DataRequest& request_;
  std::string fault_;
};

std::optional<Refusal> refuse_protocol(const DataRequest& request) {
  if (!request.is_get || !request.upgrades || request.protocol.empty()) {
    Refusal refused = refused_with(
        status::upgrade_required, fmt::format("GET this with 'Connection: Upgrade' and 'Upgrade: {}'", kDataProtocol)
    );
    refused.field = "Upgrade";
    refused.value = kDataProtocol;
    return refused;
  }
  if (request.protocol != kDataProtocol) {
    return refused_with(
        status::bad_request,
        fmt::format(
            "version_mismatch: an upgrade to '{}' is not supported; supported: {}",
            request.protocol.substr(0, kShownBytes),
            kDataProtocol
        )
    );
  }
  if (request.bytes_behind > 0) {
    return refused_with(
        status::bad_request,
        fmt::format(
            "invalid_request: {} bytes came along with the upgrade request; send them after its answer",
            request.bytes_behind
        )
    );
  }
  return std::nullopt;
}

}  // namespace

std::variant<DataLinkHello, Refusal> read_data_request(const DataRequest& request) {
  if (std::optional<Refusal> refused = refuse_protocol(request)) {
    return std::move(*refused);
  }
  HeaderReader reader(request);
  DataLinkHello hello;
  hello.job = reader.job();
  hello.uid = reader.number<std::uint32_t>(kUid, 0, 0xFFFF'FFFF);
  hello.epoch = reader.number<std::uint64_t>(kEpoch, 1, 0xFFFF'FFFF);
  hello.payload = reader.payload();
  hello.from = reader.incarnation(kFrom);
  hello.to = reader.incarnation(kTo);
  if (!reader.fault().empty()) {
    return refused_with(status::bad_request, "invalid_request: " + reader.fault());
  }
  return hello;
}

std::vector<std::pair<std::string_view, std::string>> data_headers(const DataLinkHello& hello) {
  return {
      {kJob, hex_of(hello.job)},
      {kUid, fmt::to_string(hello.uid)},
      {kEpoch, fmt::to_string(hello.epoch)},
      {kPayload, std::string(hello.payload == DataPayload::Results ? kResults : kPartials)},
      {kFrom, hello.from},
      {kTo, hello.to}};
}

}  // namespace gradsync::net
