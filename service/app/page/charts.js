// The norm over the last steps: a curve, the threshold, and a mark for each step that was clipped, was skipped or had a
// norm that is not finite. A slider under it reads one step out.

import { byId, numeral, setText, shape, threshold, value } from "./elements.js";

const WIDTH = 720;
const HEIGHT = 220;
const LEFT = 64;
const RIGHT = 10;
const TOP = 22;
const BOTTOM = 24;
const LOGARITHMIC_ABOVE = 50; // highest to lowest

let shown = [];
let scale = null;

function scaleOf(steps) {
  const values = steps.flatMap((one) => [value(one.norm), value(one.threshold)]).filter(Number.isFinite);
  const highest = Math.max(...values, 0);
  const positive = values.filter((one) => one > 0);
  const lowest = Math.min(...positive);
  const logarithmic = positive.length > 0 && highest / lowest > LOGARITHMIC_ABOVE;
  const from = logarithmic ? Math.log10(lowest) : 0;
  const to = logarithmic ? Math.log10(highest) : highest * 1.05 || 1;
  const place = (number) => (logarithmic ? Math.log10(Math.max(number, lowest)) : number);
  const ticks = [0, 1, 2, 3, 4].map((tick) => from + ((to - from) * tick) / 4);
  return {
    logarithmic,
    ticks: ticks.map((tick) => (logarithmic ? 10 ** tick : tick)),
    x: (index) => LEFT + ((WIDTH - LEFT - RIGHT) * index) / Math.max(steps.length - 1, 1),
    y: (number) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (place(number) - from)) / (to - from || 1),
  };
}

/** A path through the finite values; a gap where one is not. */
function path(steps, field) {
  let pen = "M";
  let text = "";
  steps.forEach((one, index) => {
    const number = value(one[field]);
    if (!Number.isFinite(number)) {
      pen = "M";
      return;
    }
    text += `${pen}${scale.x(index).toFixed(1)} ${scale.y(number).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function marks(one, index) {
  const x = scale.x(index);
  const norm = value(one.norm);
  const y = Number.isFinite(norm) ? scale.y(norm) : TOP;
  const found = [];
  if (!Number.isFinite(norm)) {
    found.push(shape("path", { class: "mark-nonfinite", d: `M${x} ${TOP - 14}l4 5l-4 5l-4 -5z` }));
  }
  if (one.clipped) {
    found.push(shape("path", { class: "mark-clipped", d: `M${x} ${y - 3}l-4 -7h8z` }));
  }
  if (one.skipped) {
    found.push(shape("path", { class: "mark-skipped", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` }));
  }
  return found;
}

function axes(steps) {
  const lines = scale.ticks.flatMap((tick) => [
    shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: scale.y(tick), y2: scale.y(tick) }),
    shape("text", { x: LEFT - 6, y: scale.y(tick) + 4, "text-anchor": "end" }, String(Number(tick.toPrecision(3)))),
  ]);
  const labelled = new Set([0, Math.floor((steps.length - 1) / 2), steps.length - 1]);
  const anchor = (index) => (index === 0 ? "start" : index === steps.length - 1 ? "end" : "middle");
  const labels = [...labelled].map((index) =>
    shape("text", { x: scale.x(index), y: HEIGHT - 8, "text-anchor": anchor(index) }, `step ${steps[index].step}`));
  return [...lines, ...labels];
}

function words(one) {
  const what = [one.clipped ? "clipped" : "", one.skipped ? "skipped" : ""].filter(Boolean).join(", ");
  return `step ${one.step}: norm ${numeral(one.norm)}, ${
    value(one.threshold) === Infinity ? "no threshold" : `threshold ${threshold(one.threshold)}`
  }${what ? `, ${what}` : ""}. ${one.reason}`;
}

function readOut() {
  const slider = byId("norm-step");
  const one = shown[Number(slider.value)];
  byId("norm-chart").querySelector(".chosen")?.remove();
  setText(byId("norm-readout"), one ? words(one) : "");
  if (!one) {
    return;
  }
  slider.setAttribute("aria-valuetext", words(one));
  const x = scale.x(Number(slider.value));
  byId("norm-chart").append(shape("line", { class: "chosen", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }));
}

function summary(steps) {
  if (steps.length === 0) {
    return "No step was committed yet.";
  }
  const count = (test) => steps.filter(test).length;
  return `${steps.length} steps, ${count((one) => one.clipped)} clipped, ${count((one) => one.skipped)} skipped, ${
    count((one) => !Number.isFinite(value(one.norm)))} with a norm that is not finite${
    scale.logarithmic ? "; the scale is logarithmic" : ""}.`;
}

/** The slider stays on its step, or follows the newest where it was on that. */
function moveSlider(before) {
  const slider = byId("norm-step");
  const chosen = before[Number(slider.value)];
  const followed = !chosen || chosen === before.at(-1);
  slider.max = Math.max(shown.length - 1, 0);
  const same = followed ? -1 : shown.findIndex((one) => one.attempt === chosen.attempt && one.epoch === chosen.epoch);
  slider.value = followed ? slider.max : Math.max(same, 0);
}

export function showNorms(steps) {
  const before = shown;
  shown = steps;
  scale = scaleOf(steps);
  const drawn = steps.length === 0 ? [] : [
    ...axes(steps),
    shape("path", { class: "limit", d: path(steps, "threshold") }),
    shape("path", { class: "curve", d: path(steps, "norm") }),
    ...steps.flatMap(marks),
  ];
  byId("norm-chart").replaceChildren(...drawn);
  setText(byId("norm-summary"), summary(steps));
  moveSlider(before);
  readOut();
}

byId("norm-step").addEventListener("input", readOut);
byId("norm-chart").addEventListener("pointermove", (event) => {
  const box = byId("norm-chart").getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * WIDTH;
  const share = Math.min(Math.max((x - LEFT) / (WIDTH - LEFT - RIGHT), 0), 1);
  byId("norm-step").value = Math.round(share * (shown.length - 1));
  readOut();
});
