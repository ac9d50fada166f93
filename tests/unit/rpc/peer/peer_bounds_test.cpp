// Every bound of a message between daemons is refused by the name of its field, with the value and what is expected.

#include "peer_texts.hpp"

#include <gtest/gtest.h>

namespace gradsync::rpc {
namespace {

/// One value of the richest sample of a kind is replaced. A `message` of "" says that the value is taken.
struct BoundCase {
  const char* method;
  const char* pointer;
  Json value;
  std::string message;
};

void expect_bounds(const std::vector<BoundCase>& cases) {
  for (const BoundCase& bound : cases) {
    PeerSample sample = sample_of(bound.method);
    const Json::json_pointer pointer(std::string("/params") + bound.pointer);
    sample.text[pointer] = bound.value;
    const std::optional<Error> error = refusal_of(sample.text.dump(), sample.to_member);
    const std::string found = error ? error->message : "";
    const std::string expected = bound.message.empty() ? "" : bound.method + (": " + bound.message);
    EXPECT_EQ(found, expected) << bound.method << bound.pointer << " = " << bound.value.dump().substr(0, 200);
    EXPECT_TRUE(!error || !error->hint.empty()) << found;
  }
}

std::string digits(std::size_t count, char digit = 'a') { return std::string(count, digit); }

/// A long string as messages show it.
std::string cut(char digit) { return "\"" + digits(60, digit) + "…\""; }

std::string no_hex(const std::string& field, std::size_t found, int digits_expected) {
  return field + " is \"" + digits(found) + "\", a string of " + std::to_string(found) + " bytes; expected " +
         std::to_string(digits_expected) + " lower-case hex digits";
}

std::string no_span(const std::string& found, std::int64_t last) {
  return found + "; expected a first and a count of at least 1 that end at " + std::to_string(last) + " or before";
}

Json list(const char* text) { return Json::parse(text); }

Json list_of(std::size_t count, const Json& item) { return Json(std::vector<Json>(count, item)); }

TEST(PeerBounds, every_bound_of_a_join_is_refused_by_name) {
  expect_bounds({
      {"peer.join", "/challenge", "3", R"(challenge is "3", a string of 1 bytes; expected 16 lower-case hex digits)"},
      {"peer.join",
       "/challenge",
       "000000000000000A",
       R"(challenge is "000000000000000A"; expected 16 lower-case hex digits)"},
      {"peer.join", "/challenge", 3, "challenge is 3; expected 16 lower-case hex digits"},
      {"peer.join", "/challenge", "0000000000000000", ""},
      {"peer.join", "/count", 0, "count is 0; expected 1 to 4294967295"},
      {"peer.join", "/count", 4294967296, "count is 4294967296; expected 1 to 4294967295"},
      {"peer.join", "/count", 4294967295, ""},
      {"peer.join", "/node", "", "node is a string of 0 bytes; expected 1 to 64"},
      {"peer.join", "/node", digits(65), "node is a string of 65 bytes; expected 1 to 64"},
      {"peer.join", "/node", digits(64), ""},
      {"peer.join", "/node", "a\tb", R"(node is "a\u0009b"; expected no control character (U+0009 at byte 1))"},
      {"peer.join", "/node_id", digits(31), no_hex("node_id", 31, 32)},
      {"peer.join", "/incarnation", digits(17), no_hex("incarnation", 17, 16)},
      {"peer.join", "/address", digits(65), "address is a string of 65 bytes; expected 1 to 64"},
      {"peer.join", "/listen", digits(65), "listen is a string of 65 bytes; expected 1 to 64"},
      {"peer.join", "/port", 0, "port is 0; expected 1 to 65535"},
      {"peer.join", "/port", 65536, "port is 65536; expected 1 to 65535"},
      {"peer.join", "/port", 65535, ""},
      {"peer.join", "/epoch", 4294967296, "epoch is 4294967296; expected 0 to 4294967295"},
      {"peer.join", "/epoch", 0, ""},
      {"peer.join", "/job", digits(257), "job is a string of 257 bytes; expected 1 to 256"},
      {"peer.join", "/job", "", "job is a string of 0 bytes; expected 1 to 256"},
      {"peer.join", "/uid", 4294967296, "uid is 4294967296; expected 0 to 4294967295"},
      {"peer.join", "/restart_count", -1, "restart_count is -1; expected at least 0"},
      {"peer.join", "/world_size", 4097, "world_size is 4097; expected 1 to 4096"},
      {"peer.join", "/world_size", 0, "world_size is 0; expected 1 to 4096"},
      {"peer.join", "/world_size", 5, "ranks has rank 5; expected 0 to 4, below world_size"},
      {"peer.join", "/world_size", 3, "local_world_size is 4; expected 1 to 3, the world_size"},
      {"peer.join", "/meshes", Json::array(), "meshes is a list of 0 items; expected 1 to 64"},
      {"peer.join", "/meshes", list_of(65, 1), "meshes is a list of 65 items; expected 1 to 64"},
      {"peer.join", "/meshes/0/axes/0/size", 0, "meshes[0].axes[0].size is 0; expected at least 1"},
      {"peer.join", "/local_world_size", 0, "local_world_size is 0; expected 1 to 4096"},
      {"peer.join", "/local_world_size", 3, "ranks has 4 ranks; expected at most 3, the local_world_size"},
      {"peer.join", "/local_world_size", 6, ""},
      {"peer.join", "/ranks/0", list("[4095, 2]"), no_span("ranks[0] is [4095, 2]", 4095)},
      {"peer.join", "/ranks/0", list("[0, 0]"), no_span("ranks[0] is [0, 0]", 4095)},
      {"peer.join",
       "/ranks/0",
       list("[0, 9223372036854775807]"),
       no_span("ranks[0] is [0, 9223372036854775807]", 4095)},
      {"peer.join",
       "/ranks/0",
       list("[9223372036854775807, 9223372036854775807]"),
       no_span("ranks[0] is [9223372036854775807, 9223372036854775807]", 4095)},
      {"peer.join", "/ranks/0", list("[-1, 2]"), "ranks[0][0] is -1; expected at least 0"},
      {"peer.join", "/ranks/0", list("[2]"), "ranks[0] is a list of 1 items; expected 2 numbers"},
      {"peer.join", "/ranks/0", list("[2, 4, 1]"), "ranks[0] is a list of 3 items; expected 2 numbers"},
      {"peer.join",
       "/ranks",
       list("[[2, 3], [4, 2]]"),
       "ranks[1] begins at 4, and the span before it ends at 4; expected spans that ascend and lie apart"},
      {"peer.join",
       "/ranks",
       list("[[2, 3]]"),
       "declared.by_content has rank 5, which is not in ranks; expected the same ranks"},
      {"peer.join",
       "/declared/devices",
       list("[0, 1]"),
       "declared.devices has 2 entries; expected 4, one for each rank of the node"},
      {"peer.join", "/declared/devices", list("[]"), ""},
      {"peer.join", "/declared/devices/1", -1, "declared.devices[1] is -1; expected 0 to 4294967295"},
      {"peer.join",
       "/ranks",
       list("[[1, 1], [2, 3]]"),
       "declared.by_content lacks rank 1, which is in ranks; expected the same ranks"},
      {"peer.join",
       "/words/doubt",
       "1",
       R"(words.doubt is "1", a string of 1 bytes; expected 16 lower-case hex digits)"},
      {"peer.join", "/words/doubt", "0000000000000000", ""},
      {"peer.join", "/words/done", "0000000000000000", ""},
      {"peer.join",
       "/declared/by_content",
       list_of(4097, 1),
       "declared.by_content is a list of 4097 items; expected 0 to 4096"},
      {"peer.join",
       "/declared/by_content/1/ranks",
       list("[[4, 1]]"),
       "declared.by_content[1].ranks has rank 4, which is given before; expected each rank once"},
      {"peer.join",
       "/declared/by_content/1/ranks",
       Json::array(),
       "declared.by_content[1].ranks is an empty list; expected the ranks that declared this"},
      {"peer.join",
       "/declared/by_content/0/weights",
       2,
       "declared.by_content[0].weights is 2; expected the index of one of 2 weight_fingerprints"},
      {"peer.join",
       "/declared/weight_fingerprints",
       list_of(4097, 1),
       "declared.weight_fingerprints is a list of 4097 items; expected 0 to 4096"},
      {"peer.join",
       "/declared/weight_fingerprints/1",
       Json::array(),
       "declared.weight_fingerprints[1] is a list of 0 items; expected 1 to 10000000"},
      {"peer.join",
       "/declared/weight_fingerprints/1/0",
       digits(65),
       "declared.weight_fingerprints[1][0] is a string of 65 bytes; expected 0 to 64"},
      {"peer.join", "/declared/settings/check_every", -1, "declared.settings.check_every is -1; expected at least 0"},
      {"peer.join", "/declared/settings/bucket_bytes", -1, "declared.settings.bucket_bytes is -1; expected at least 0"},
  });
}

TEST(PeerBounds, every_bound_of_an_epoch_is_refused_by_name) {
  expect_bounds({
      {"peer.ready", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.ready", "/epoch", "4294967296", "epoch is \"4294967296\"; expected 1 to 4294967295"},
      {"peer.ready",
       "/plan_digest",
       "",
       R"(plan_digest is "", a string of 0 bytes; expected 16 lower-case hex digits)"},
      {"peer.ready",
       "/policy_digest",
       "000000000000000g",
       R"(policy_digest is "000000000000000g"; expected 16 lower-case hex digits)"},
      {"peer.ready", "/communicators/version", 0, "communicators.version is 0; expected 1 to 2147483647"},
      {"peer.ready",
       "/communicators/offers/0/name",
       "",
       "communicators.offers[0].name is a string of 0 bytes; expected 1 to 128"},
      {"peer.ready", "/communicators/offers/0/members", 1, "communicators.offers[0].members is 1; expected 2 to 4096"},
      {"peer.ready", "/communicators/offers/0/own", 4096, "communicators.offers[0].own is 4096; expected 0 to 4095"},
      {"peer.ready",
       "/communicators/offers/0/id",
       digits(254),
       "communicators.offers[0].id is a string of 254 digits; expected two lower-case hex digits for each of 128 to "
       "128 bytes"},
      {"peer.ready",
       "/communicators/offers",
       list_of(81, 1),
       "communicators.offers is a list of 81 items; expected 0 to 80"},
      {"peer.connect", "/communicators", list_of(81, 1), "communicators is a list of 81 items; expected 0 to 80"},
      {"peer.connected", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.connect", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.begin", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.leave", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.end", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.end", "/failed_word", "0000000000000000", ""},
      {"peer.policies", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.hello", "/version", digits(65), "version is a string of 65 bytes; expected 1 to 64"},
      {"peer.hello", "/node", digits(65), "node is a string of 65 bytes; expected 1 to 64"},
      {"peer.hello", "/seen_address", "", "seen_address is a string of 0 bytes; expected 1 to 64"},
      {"peer.hello", "/peer_protocol", 0, "peer_protocol is 0; expected at least 1"},
      {"peer.hello",
       "/incarnation",
       "x",
       R"(incarnation is "x", a string of 1 bytes; expected 16 lower-case hex digits)"},
      {"peer.ruling", "/verdict", "lost", R"(verdict is "lost"; expected one of "done", "failed", "unknown")"},
      {"peer.prepare", "/epoch", 0, "epoch is 0; expected 1 to 4294967295"},
      {"peer.prepare", "/roster", Json::array(), "roster is a list of 0 items; expected 1 to 256"},
      {"peer.prepare", "/roster", list_of(257, 1), "roster is a list of 257 items; expected 1 to 256"},
      {"peer.prepare", "/roster/0/node", digits(65), "roster[0].node is a string of 65 bytes; expected 1 to 64"},
      {"peer.prepare", "/roster/0/address", "", "roster[0].address is a string of 0 bytes; expected 1 to 64"},
      {"peer.prepare", "/roster/0/port", 0, "roster[0].port is 0; expected 1 to 65535"},
      {"peer.prepare", "/roster/1/port", 65536, "roster[1].port is 65536; expected 1 to 65535"},
      {"peer.prepare",
       "/roster/0/by_content",
       Json::array(),
       "roster[0].by_content is a list of 0 items; expected 1 to 4096"},
      {"peer.prepare",
       "/roster/0/by_content",
       list_of(4097, 1),
       "roster[0].by_content is a list of 4097 items; expected 1 to 4096"},
      {"peer.prepare",
       "/roster/1/by_content/1/ranks",
       list("[[1, 2]]"),
       "roster[1].by_content[1].ranks has rank 1, which is given before; expected each rank once"},
      {"peer.prepare",
       "/roster/0/by_content/0/ranks",
       list("[[6, 1]]"),
       "roster[1].by_content begins with rank 2; expected more than 6, that of the node before"},
      {"peer.prepare",
       "/roster/1/by_content/1/weights",
       2,
       "roster[1].by_content[1].weights is 2; expected the index of one of 2 weight_fingerprints"},
      {"peer.prepare",
       "/weight_fingerprints",
       list_of(4097, 1),
       "weight_fingerprints is a list of 4097 items; expected 0 to 4096"},
      {"peer.pause", "/ranks", list("[[4096, 1]]"), no_span("ranks[0] is [4096, 1]", 4095)},
      {"peer.pause", "/ranks", Json::array(), ""},
  });
}

TEST(PeerBounds, every_bound_of_a_step_is_refused_by_name) {
  const char* const kNoWord = R"(word is "0000000000000000"; expected the word of an attempt, which is not 0)";
  std::vector<BoundCase> words;
  for (const char* method :
       {"peer.ask",
        "peer.rows",
        "peer.vote",
        "peer.fail",
        "peer.overdue",
        "peer.missing",
        "peer.ruling",
        "peer.compare",
        "peer.decision",
        "peer.done",
        "peer.abort",
        "peer.who"}) {
    words.push_back({method, "/word", "0000000000000000", kNoWord});
  }
  expect_bounds(words);
  expect_bounds({
      {"peer.ask", "/kind", "scale", R"(kind is "scale"; expected one of "finish", "norm", "clip", "import")"},
      {"peer.ask", "/kind", "norm", ""},
      {"peer.ask", "/kind", "clip", "sites does not belong to the kinds clip and import"},
      {"peer.ask", "/scale", 0, "scale is 0; expected a finite number above 0"},
      {"peer.ask", "/scale", "Infinity", "scale is inf; expected a finite number above 0"},
      {"peer.ask", "/scale", "NaN", R"(scale is "NaN"; expected at least 0)"},
      {"peer.ask", "/scale", -1, "scale is -1; expected at least 0"},
      {"peer.ask", "/max_norm", -1, "max_norm is -1; expected at least 0"},
      {"peer.ask", "/max_norm", "Infinity", ""},
      {"peer.ask", "/state_digest", digits(16), "state_digest belongs to the kind import only"},
      {"peer.ask", "/step", "9223372036854775808", R"(step is "9223372036854775808"; expected an integer)"},
      {"peer.ask",
       "/sites/0/cells/groups",
       list_of(1001, 1),
       "sites[0].cells.groups is a list of 1001 items; expected 0 to 1000"},
      {"peer.ask", "/sites/0/cells/groups", list_of(1000, digits(96)), ""},
      {"peer.ask",
       "/sites/0/cells/whole",
       digits(95),
       "sites[0].cells.whole is " + cut('a') + ", a string of 95 bytes; expected 96 lower-case hex digits"},
      {"peer.ask",
       "/sites/0/cells/layers/1",
       digits(96, 'F'),
       "sites[0].cells.layers[1] is " + cut('F') + "; expected 96 lower-case hex digits"},
      {"peer.ask", "/sites/0/row_hashes/0", 0, "sites[0].row_hashes[0] is 0; expected 16 lower-case hex digits"},
      {"peer.ask",
       "/sites/0/findings/nonfinite",
       list_of(65, 1),
       "sites[0].findings.nonfinite is a list of 65 items; expected 0 to 64"},
      {"peer.ask",
       "/sites/0/findings/divergence",
       list_of(65, 1),
       "sites[0].findings.divergence is a list of 65 items; expected 0 to 64"},
      {"peer.ask",
       "/sites/0/findings/missing",
       list_of(65, 1),
       "sites[0].findings.missing is a list of 65 items; expected 0 to 64"},
      {"peer.ask",
       "/sites/0/findings/nonfinite/0/inputs",
       list_of(4097, 1),
       "sites[0].findings.nonfinite[0].inputs is a list of 4097 items; expected 0 to 4096"},
      {"peer.ask",
       "/sites/0/findings/nonfinite/0/inputs/0",
       list("[4096, 1]"),
       "sites[0].findings.nonfinite[0].inputs[0][0] is 4096; expected 0 to 4095"},
      {"peer.ask",
       "/sites/0/findings/divergence/0/ranks/0",
       4096,
       "sites[0].findings.divergence[0].ranks[0] is 4096; expected 0 to 4095"},
      {"peer.ask",
       "/sites/0/findings/divergence/0/suspects",
       list_of(4097, 1),
       "sites[0].findings.divergence[0].suspects is a list of 4097 items; expected 0 to 4096"},
      {"peer.ask",
       "/sites/0/findings/missing/0/ranks/1",
       -1,
       "sites[0].findings.missing[0].ranks[1] is -1; expected 0 to 4095"},
      {"peer.ask",
       "/sites/0/findings/absent/0",
       list("[9999999, 2]"),
       no_span("sites[0].findings.absent[0] is [9999999, 2]", 9999999)},
      {"peer.ask",
       "/sites/0/findings/absent/1",
       list("[1, 1]"),
       "sites[0].findings.absent[1] begins at 1, and the span before it ends at 1; expected spans that ascend and lie "
       "apart"},
      {"peer.rows",
       "/box_hashes",
       list("[\"0000000000000000\"]"),
       "rows is given beside box_hashes; expected one of the two"},
      {"peer.rows", "/rows/0/rank", 4096, "rows[0].rank is 4096; expected 0 to 4095"},
      {"peer.rows",
       "/rows/0/row",
       digits(127),
       "rows[0].row is " + cut('a') + ", a string of 127 bytes; expected 128 lower-case hex digits"},
      {"peer.rows", "/rows/0/box", 4294967296, "rows[0].box is 4294967296; expected 0 to 4294967295"},
      {"peer.vote",
       "/result_digest",
       "",
       R"(result_digest is "", a string of 0 bytes; expected 16 lower-case hex digits)"},
      {"peer.overdue", "/waited_s", -0.5, "waited_s is -0.5; expected at least 0"},
      {"peer.missing", "/tensors", list_of(21, "w"), "tensors is a list of 21 items; expected 0 to 20"},
      {"peer.missing", "/tensors/0", digits(513), "tensors[0] is a string of 513 bytes; expected 0 to 512"},
      {"peer.missing", "/words", digits(4097), "words is a string of 4097 bytes; expected 0 to 4096"},
      {"peer.missing", "/ranks", list("[[0, 4097]]"), no_span("ranks[0] is [0, 4097]", 4095)},
      {"peer.missing", "/ranks", list("[[0, 4096]]"), ""},
      {"peer.compare", "/classes", list("[1]"), "boxes is given beside classes; expected one of the two"},
      {"peer.compare", "/boxes", list_of(65, list("[1, 2]")), "boxes is a list of 65 items; expected 0 to 64"},
      {"peer.compare", "/boxes", Json::array(), "params has neither classes nor boxes; expected one of the two"},
      {"peer.compare", "/boxes/0", list("[1, 4294967296]"), "boxes[0][1] is 4294967296; expected 0 to 4294967295"},
  });
}

TEST(PeerBounds, every_bound_of_an_error_is_refused_by_name) {
  expect_bounds({
      {"peer.abort",
       "/error/kind",
       "lost",
       R"(error.kind is "lost"; expected the kind of an error, as docs/errors.md has them)"},
      {"peer.abort", "/error/message", digits(8193), "error.message is a string of 8193 bytes; expected 0 to 8192"},
      {"peer.abort",
       "/error/message",
       "a\nb",
       R"(error.message is "a\u000ab"; expected no control character (U+000A at byte 1))"},
      {"peer.abort", "/error/hint", digits(1025), "error.hint is a string of 1025 bytes; expected 0 to 1024"},
      {"peer.abort", "/error/path", digits(1025), "error.path is a string of 1025 bytes; expected 0 to 1024"},
      {"peer.abort", "/error/job", digits(257), "error.job is a string of 257 bytes; expected 0 to 256"},
      {"peer.abort", "/error/tensor", digits(513), "error.tensor is a string of 513 bytes; expected 0 to 512"},
      {"peer.abort", "/error/node", digits(65), "error.node is a string of 65 bytes; expected 0 to 64"},
      {"peer.abort", "/error/ranks", list_of(4097, 1), "error.ranks is a list of 4097 items; expected 0 to 4096"},
      {"peer.abort", "/error/ranks/0", 4096, "error.ranks[0] is 4096; expected 0 to 4095"},
      {"peer.abort", "/error/tensors", list_of(21, "w"), "error.tensors is a list of 21 items; expected 0 to 20"},
      {"peer.abort", "/error/rank", 4096, "error.rank is 4096; expected 0 to 4095"},
      {"peer.abort", "/error/bucket", -1, "error.bucket is -1; expected at least 0"},
      {"peer.abort", "/error/code", 1106, "error.code is not a known field"},
      {"peer.refused", "/error/message", digits(8193), "error.message is a string of 8193 bytes; expected 0 to 8192"},
  });
}

TEST(PeerBounds, every_bound_of_a_page_is_refused_by_name) {
  expect_bounds({
      {"peer.want", "/hashes", Json::array(), "hashes is a list of 0 items; expected 1 to 4096"},
      {"peer.want", "/hashes", list_of(4097, 1), "hashes is a list of 4097 items; expected 1 to 4096"},
      {"peer.want", "/hashes/1", digits(16), no_hex("hashes[1]", 16, 32)},
      {"peer.policies", "/pages", 0, "pages is 0; expected 1 to 256"},
      {"peer.policies", "/pages", 257, "pages is 257; expected 1 to 256"},
      {"peer.policies", "/page", 3, "page is 3 of 3 pages; expected 0 to 2"},
      {"peer.policies",
       "/state",
       "",
       "state is a string of 0 digits; expected two lower-case hex digits for each of 1 to 2097152 bytes"},
      {"peer.policies",
       "/state",
       "abc",
       "state is a string of 3 digits; expected two lower-case hex digits for each of 1 to 2097152 bytes"},
      {"peer.policies",
       "/state",
       "ag",
       R"(state is "ag"; expected two lower-case hex digits for each of 1 to 2097152 bytes)"},
      {"peer.declaration", "/hash", "a", no_hex("hash", 1, 32)},
      {"peer.declaration", "/pages", 257, "pages is 257; expected 1 to 256"},
      {"peer.declaration", "/pages", 1, "page is 1 of 1 pages; expected 0 to 0"},
      {"peer.declaration", "/options/accumulate", 0, "options.accumulate is 0; expected at least 1"},
      {"peer.declaration",
       "/tensors/1/name",
       digits(513),
       "tensors[1].name is a string of 513 bytes; expected 1 to 512"},
      {"peer.declaration",
       "/tensors/1/shape",
       list_of(33, 1),
       "tensors[1].shape is a list of 33 items; expected 0 to 32"},
      {"peer.declaration",
       "/tensors/1/weight_fingerprint",
       "f",
       "tensors[1].weight_fingerprint is no part of a declaration's content"},
  });
  Json page = sample_of("peer.policies").text;
  page["params"]["state"] = digits(4U << 20);
  EXPECT_FALSE(refusal_of(page.dump(), true)) << "a page as long as it may be fits its message";
  page["params"]["state"] = digits((4U << 20) + 2);
  EXPECT_EQ(
      refusal_of(page.dump(), true)->message,
      "peer.policies: state is a string of 4194306 digits; expected two lower-case hex digits for each of 1 to 2097152 "
      "bytes"
  );
  page["params"].erase("state");
  EXPECT_EQ(
      refusal_of(page.dump(), true)->message,
      "peer.policies: state is missing on page 2 of 3; expected it, or page 0 of 1"
  );
}

}  // namespace
}  // namespace gradsync::rpc
