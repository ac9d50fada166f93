#include "app/daemon/pages/status_page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace gradsync::app {
namespace {

using testing::HasSubstr;
using testing::Not;

StatusPage page_with(std::optional<std::vector<engine::JobStatus>> jobs) {
  StatusPage page;
  page.version = "1.2.3";
  page.state = "serving";
  page.jobs = std::move(jobs);
  return page;
}

engine::JobStatus job() {
  engine::JobStatus status;
  status.job = "<llm & \"friends\">";
  status.state = "stepping";
  status.reason = "waits for rank 1";
  status.norm = 1.5;
  status.threshold = std::numeric_limits<double>::infinity();
  status.ranks.push_back(
      {.rank = 1,
       .state = "declared",
       .pid = 42,
       .waiting_in = "step.finish",
       .waited_s = 200,
       .paused = true,
       .arena_bytes = 2048,
       .measured_by = "gradsync <kernels>"}
  );
  return status;
}

TEST(StatusPage, loads_nothing_from_elsewhere) {
  const std::string html = render_status_page(page_with({{job()}}));
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("http://")));
  EXPECT_THAT(html, Not(HasSubstr("https://")));
  EXPECT_THAT(html, HasSubstr("color-scheme: light dark"));
}

TEST(StatusPage, shows_jobs_with_their_reason_and_ranks_and_escapes_names) {
  const std::string html = render_status_page(page_with({{job()}}));
  EXPECT_THAT(html, HasSubstr("&lt;llm &amp; &quot;friends&quot;&gt;"));
  EXPECT_THAT(html, HasSubstr("stepping: waits for rank 1"));
  EXPECT_THAT(html, HasSubstr("step.finish for 3 min 20 s"));
  EXPECT_THAT(html, HasSubstr("<dt>norm</dt><dd>1.5</dd><dt>threshold</dt><dd>no threshold</dd>"));
  EXPECT_THAT(html, HasSubstr("declared, paused"));
  EXPECT_THAT(html, HasSubstr("<td>gradsync &lt;kernels&gt;</td>"));
}

TEST(StatusPage, shows_a_threshold_as_a_number_and_says_that_a_norm_is_not_finite) {
  engine::JobStatus overflown = job();
  overflown.norm = std::numeric_limits<double>::infinity();
  overflown.threshold = 0.5;
  const std::string html = render_status_page(page_with({{overflown}}));
  EXPECT_THAT(html, HasSubstr("<dt>norm</dt><dd>not finite</dd><dt>threshold</dt><dd>0.5</dd>"));
}

TEST(StatusPage, a_reader_who_may_not_see_jobs_is_told_how_to) {
  EXPECT_THAT(render_status_page(page_with(std::nullopt)), HasSubstr("gradsyncd status"));
  EXPECT_THAT(render_status_page(page_with(std::vector<engine::JobStatus>{})), HasSubstr("No jobs"));
}

TEST(HumanSeconds, are_short) {
  EXPECT_EQ(human_seconds(0.25), "0.2 s");
  EXPECT_EQ(human_seconds(42.9), "42 s");
  EXPECT_EQ(human_seconds(3723), "62 min 3 s");
  EXPECT_EQ(human_seconds(7300), "2 h 1 min");
}

}  // namespace
}  // namespace gradsync::app
