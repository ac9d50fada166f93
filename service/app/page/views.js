// What the page says of the daemon and of one job, in words and tables.

import { byId, bytes, duration, element, fill, fillTable, numeral, rankList, setText, threshold } from "./elements.js";

const TABLE_STEPS = 50;

export const jobKey = (job) => `job=${encodeURIComponent(job.job)}&uid=${job.uid}`;

export function showDaemon(status) {
  setText(byId("version"), status.version);
  const up = status.uptime_s === undefined ? "" : `, up ${duration(status.uptime_s)}`;
  setText(byId("daemon"), `${status.state}${up}, incarnation ${status.incarnation}`);
}

export function showJobs(status, chosen) {
  fill(
    byId("jobs"),
    status.jobs,
    () => element("li", {}, element("a", {}, element("span"), element("small"))),
    (item, job) => {
      const link = item.firstElementChild;
      link.setAttribute("href", `#${jobKey(job)}`);
      link.setAttribute("aria-current", String(job === chosen));
      setText(link.children[0], job.job);
      setText(link.children[1], `${job.state}, ${job.world_size} ranks`);
    },
  );
  const more = status.jobs_left_out > 0 ? `${status.jobs_left_out} more jobs do not fit into an answer.` : "";
  setText(byId("no-jobs"), status.jobs.length === 0 ? "No jobs. A trainer appears here when it attaches." : more);
}

function factsOf(job) {
  const commit = job.last_commit_age_s < 0 ? "none yet" : `${duration(job.last_commit_age_s)} ago`;
  const memory = job.ranks.reduce((sum, rank) => sum + rank.arena_bytes, 0);
  const path = job.data_path + (job.partial_sums ? `, partial sums in ${job.partial_sums}` : "");
  return [
    ["last step", job.last_step < 0 ? "none" : job.last_step],
    ["last commit", commit],
    ["steps", `${job.steps_committed} committed, ${job.steps_failed} failed`],
    ["norm", numeral(job.norm)],
    ["threshold", threshold(job.threshold)],
    ["epoch", job.epoch],
    ["attempt", job.attempt],
    ["memory of buffers", bytes(memory)],
    ["data path", path],
    ["plan", job.plan_digest ? `${job.tensors} tensors in ${job.buckets} buckets` : "none yet"],
    ["digest of the plan", job.plan_digest || "–"],
    ["uid", job.uid],
  ];
}

function showFacts(job) {
  fill(
    byId("facts"),
    factsOf(job),
    () => element("div", {}, element("dt"), element("dd")),
    (pair, [name, text]) => {
      setText(pair.children[0], name);
      setText(pair.children[1], String(text));
    },
  );
}

function showRanks(job, steps) {
  const lag = new Map((steps?.lag ?? []).map((one) => [one.rank, one]));
  fillTable(byId("ranks"), job.ranks.map((rank) => [
    rank.rank,
    { text: rank.state + (rank.paused ? ", paused" : ""), bad: rank.state === "disconnected" },
    rank.pid || "–",
    rank.waiting_in ? `${rank.waiting_in} for ${duration(rank.waited_s)}` : "–",
    lag.has(rank.rank) ? `${lag.get(rank.rank).times_last} times` : "–",
    lag.has(rank.rank) ? duration(lag.get(rank.rank).waited_s) : "–",
    bytes(rank.arena_bytes),
    rank.measured_by || "–",
  ]));
  const counted = steps?.lag_attempts ?? 0;
  const note = `Over the last ${counted} steps; alone: while all others had asked.`;
  setText(byId("lag-note"), counted === 0 ? "" : note);
  setText(byId("absent"), job.absent === 0 ? "" : `${rankList(job.absent_ranks, job.absent)}: no process`);
}

function rank(input) {
  const batch = input.micro_batch === undefined ? "" : ` (micro-batch ${input.micro_batch})`;
  return `rank ${input.rank} brought ${input.count}${batch}`;
}

function wordsOf(finding) {
  const nonfinite = finding.nonfinite.map((one) => {
    const source = one.inputs.length === 0 ? "they arose in the sum" : one.inputs.map(rank).join(", ");
    return `tensor '${one.tensor}' has ${one.count} values that are not finite: ${source}`;
  });
  const divergence = finding.divergence.map((one) => {
    const others = one.majority.length === 0 ? "from each other" : "from the other ranks";
    return `copies of tensor '${one.tensor}' differ: ${rankList(one.suspects)} ${others}`;
  });
  const missing = finding.missing.map((one) => `tensor '${one.tensor}' has a gradient, and none on ${rankList(one.ranks)}`);
  const more = finding.left_out > 0 ? [`${finding.left_out} more tensors`] : [];
  return [...nonfinite, ...divergence, ...missing, ...more].map((text) => `step ${finding.step}: ${text}`);
}

function failure(attempt, now) {
  const step = attempt.step === undefined ? "a step" : `step ${attempt.step}`;
  const ranks = attempt.missing_count > 0 ? ` for ${rankList(attempt.missing, attempt.missing_count)}` : "";
  const age = duration((now - (attempt.ended_us ?? now)) * 1e-6);
  return `${step} failed ${age} ago: ${attempt.error}${ranks} (attempt ${attempt.attempt})`;
}

function showFindings(steps) {
  const failed = steps.attempts.filter((one) => one.state === "failed").reverse();
  const texts = [
    ...failed.map((one) => failure(one, steps.taken_us)),
    ...steps.findings.toReversed().flatMap(wordsOf),
  ];
  fill(byId("findings"), texts, () => element("li"), setText);
  byId("no-findings").hidden = texts.length > 0;
}

function showPolicies(job) {
  byId("policies-section").hidden = job.clip.length === 0;
  fillTable(byId("policies"), job.clip.map((one) => [
    one.group,
    one.policy + (one.watches ? ", watches" : ""),
    `${numeral(100 * one.clip_rate)} % of ${one.steps} steps`,
    threshold(one.threshold),
    `${threshold(one.threshold_lowest)} to ${threshold(one.threshold_highest)}`,
    { text: one.signs.join("; ") || "–", bad: one.signs.length > 0 },
  ]));
}

function showCommunicators(job) {
  byId("communicators-section").hidden = job.communicators.length === 0;
  fillTable(byId("communicators"), job.communicators.map((one) => [
    one.name,
    rankList(one.ranks),
    one.transport,
    one.epoch,
    one.state,
    bytes(one.sent_bytes),
    bytes(one.received_bytes),
    `${one.operations}, ${one.operations_per_step} a step`,
    one.last_use_age_s < 0 ? "not yet" : `${duration(one.last_use_age_s)} ago`,
  ]));
}

function showSteps(steps) {
  fillTable(byId("steps"), steps.slice(-TABLE_STEPS).reverse().map((one) => [
    one.step,
    { text: numeral(one.norm), bad: numeral(one.norm) === "not finite" },
    threshold(one.threshold),
    numeral(one.coefficient),
    duration(one.timings.wait_s),
    duration(one.timings.total_s),
    one.reason,
  ]));
}

export function showJob(job, steps) {
  setText(byId("job-name"), job.job);
  setText(byId("job-state"), job.state);
  setText(byId("reason"), job.reason);
  showFacts(job);
  showRanks(job, steps);
  showPolicies(job);
  showCommunicators(job);
  if (steps) {
    showSteps(steps.steps);
    showFindings(steps);
  }
}

/** What changed between two answers that a reader who does not look should hear of. */
export function newsOf(before, job) {
  if (!before || before.job !== job.job || before.uid !== job.uid) {
    return "";
  }
  const states = new Map(before.ranks.map((one) => [one.rank, one.state]));
  const changed = job.ranks.filter((one) => states.get(one.rank) !== one.state);
  const news = changed.map((one) => `rank ${one.rank} is ${one.state}`);
  const left = before.ranks.filter((one) => !job.ranks.some((other) => other.rank === one.rank));
  const gone = left.map((one) => `rank ${one.rank} is gone`);
  const failed = job.steps_failed > before.steps_failed ? ["a step failed"] : [];
  return [...news, ...gone, ...failed].slice(0, 5).join(", ");
}
