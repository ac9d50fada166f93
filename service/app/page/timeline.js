// The buckets of one attempt over its time, as the flight recorder has them: until all ranks have called a bucket
// ready, until the lane has it, until it is reduced.

import { byId, bytes, duration, element, fill, fillTable, rankList, setText, shape } from "./elements.js";

const WIDTH = 720;
const LEFT = 64;
const RIGHT = 10;
const TOP = 40;
const TALLEST_ROW = 16;
const MOST_HEIGHT = 420;
const MOMENTS = [
  ["first_ask_us", "first rank asks"],
  ["last_ask_us", "last rank asks"],
  ["measured_us", "measured"],
  ["ended_us", "end"],
];

const keyOf = (one) => `${one.epoch}/${one.attempt}`;

function nameOf(attempt) {
  const step = attempt.step === undefined ? "no step yet" : `step ${attempt.step}`;
  return `${step}, attempt ${attempt.attempt}: ${attempt.state === "open" ? "under way" : attempt.state}`;
}

let latest = null; // the answer that is shown
let held = null; // what a reader has chosen of it: {attempt, buckets}; it stays when newer steps come

const bucketsOf = (steps, attempt) => steps.buckets.filter((one) => keyOf(one) === keyOf(attempt));

function offer(attempts) {
  const select = byId("timeline-attempt");
  const older = held && !attempts.some((one) => keyOf(one) === keyOf(held.attempt)) ? [held.attempt] : [];
  const last = { value: "", text: "the last one that ended" };
  const options = [last, ...[...older, ...attempts].map((one) => ({ value: keyOf(one), text: nameOf(one) }))];
  fill(select, options, () => element("option"), (option, { value, text }) => {
    option.value = value;
    setText(option, text);
  });
  select.value = held ? keyOf(held.attempt) : "";
}

/** What is chosen, as new as it is known. */
function chosen(steps, attempts) {
  const attempt = held
    ? attempts.find((one) => keyOf(one) === keyOf(held.attempt))
    : (attempts.findLast((one) => one.state !== "open") ?? attempts.at(-1));
  return attempt ? { attempt, buckets: bucketsOf(steps, attempt) } : held;
}

/** Parts of a bucket's time as [class, from, to]; what has not ended goes on until `now`. */
function parts(bucket, now) {
  const times = [
    ["bar-collecting", bucket.first_ready_us, bucket.last_ready_us],
    ["bar-waiting", bucket.last_ready_us, bucket.launched_us],
    ["bar-reducing", bucket.launched_us, bucket.done_us],
  ];
  const open = bucket.state === "collecting" || bucket.state === "launched";
  return times
    .filter(([, from]) => from !== undefined)
    .map(([name, from, to]) => [name, from, to ?? (open ? now : from)]);
}

function moments(attempt, x, height) {
  const known = MOMENTS.filter(([field]) => attempt[field] !== undefined);
  return known.flatMap(([field, name], index) => {
    const at = x(attempt[field]);
    const top = 10 + 10 * (index % 3);
    const side = at > WIDTH / 2 ? { x: at - 4, "text-anchor": "end" } : { x: at + 4, "text-anchor": "start" };
    return [
      shape("line", { class: "moment-line", x1: at, x2: at, y1: top, y2: height - 18 }),
      shape("text", { ...side, y: top + 2 }, name),
    ];
  });
}

function draw(attempt, buckets, now) {
  const row = Math.max(Math.min(TALLEST_ROW, MOST_HEIGHT / Math.max(buckets.length, 1)), 1.5);
  const height = TOP + row * buckets.length + 24;
  const from = attempt.begun_us;
  const to = Math.max(attempt.ended_us ?? now, from + 1);
  const x = (time) => LEFT + ((WIDTH - LEFT - RIGHT) * (time - from)) / (to - from);
  const y = (index) => TOP + row * index;
  const bar = (index) => ([name, begin, end]) =>
    shape("rect", { class: name, x: x(begin), width: Math.max(x(end) - x(begin), 0.7), y: y(index), height: row * 0.8 });
  const bars = buckets.flatMap((bucket, index) => parts(bucket, to).map(bar(index)));
  const labelEvery = Math.max(Math.ceil(12 / row), 1);
  const label = (bucket, index) =>
    shape("text", { x: LEFT - 6, y: y(index) + Math.min(row, 12) * 0.8, "text-anchor": "end" }, String(bucket.bucket));
  const labels = buckets.map(label).filter((_, index) => index % labelEvery === 0);
  const ends = [
    shape("text", { x: LEFT, y: height - 6 }, "0"),
    shape("text", { x: WIDTH - RIGHT, y: height - 6, "text-anchor": "end" }, duration((to - from) * 1e-6)),
  ];
  const chart = byId("timeline");
  chart.setAttribute("viewBox", `0 0 ${WIDTH} ${height}`);
  chart.replaceChildren(...bars, ...moments(attempt, x, height), ...labels, ...ends);
}

function rowOf(bucket, begun) {
  const time = (field) => (bucket[field] === undefined ? "–" : duration((bucket[field] - begun) * 1e-6));
  return [
    bucket.bucket,
    { text: bucket.state, bad: bucket.state === "failed" },
    bytes(bucket.bytes),
    time("first_ready_us"),
    time("last_ready_us"),
    bucket.last_rank ?? "–",
    time("launched_us"),
    time("done_us"),
  ];
}

function summary(attempt, buckets, now) {
  const time = duration(((attempt.ended_us ?? now) - attempt.begun_us) * 1e-6);
  const last = attempt.last_rank === undefined ? "" : `, rank ${attempt.last_rank} asked last`;
  const missing = attempt.missing_count > 0 ? `, ${rankList(attempt.missing, attempt.missing_count)} did not come` : "";
  return `${nameOf(attempt)}, ${time}, ${buckets.length} buckets${last}${missing}.`;
}

export function showTimeline(steps) {
  if (latest && (latest.job !== steps.job || latest.uid !== steps.uid)) {
    held = null;
  }
  latest = steps;
  const attempts = steps.attempts.slice(-4);
  offer(attempts);
  const found = chosen(steps, attempts);
  if (!found) {
    byId("timeline").replaceChildren();
    setText(byId("timeline-summary"), "No step has begun yet.");
    fillTable(byId("buckets"), []);
    return;
  }
  draw(found.attempt, found.buckets, steps.taken_us);
  setText(byId("timeline-summary"), summary(found.attempt, found.buckets, steps.taken_us));
  fillTable(byId("buckets"), found.buckets.map((one) => rowOf(one, found.attempt.begun_us)));
}

byId("timeline-attempt").addEventListener("change", (event) => {
  const attempt = latest.attempts.find((one) => keyOf(one) === event.target.value);
  held = attempt ? { attempt, buckets: bucketsOf(latest, attempt) } : null;
  showTimeline(latest);
});
