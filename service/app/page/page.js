// The page asks the daemon once a second, while somebody looks at it: /status for all jobs, /steps for the one that is
// shown. It keeps no more than the last answers.

import { showNorms } from "./charts.js";
import { byId, duration, setText } from "./elements.js";
import { showTimeline } from "./timeline.js";
import { jobKey, newsOf, showDaemon, showJob, showJobs } from "./views.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const TOKEN = "gradsync-token"; // in the storage of this tab

let wanted = {}; // the job that the address names, or that is shown
let shown = null; // the job as it was answered last
let answered = Date.now();
let timer = 0;
let turns = 0;

/** The address ends in `#token=…` or in `#job=…&uid=…`; a token does not stay there. */
function readAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  if (address.has("token")) {
    sessionStorage.setItem(TOKEN, address.get("token"));
    address.delete("token");
    history.replaceState(null, "", address.size > 0 ? `#${address}` : location.pathname);
  }
  if (address.has("job")) {
    wanted = { job: address.get("job"), uid: address.get("uid") };
  }
}

class WrongToken extends Error {}

async function ask(path) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 401) {
    throw new WrongToken(token ? "this token is not the right one" : "");
  }
  if (answer.status === 404) {
    return null; // the job is gone
  }
  if (!answer.ok) {
    throw new Error(`${answer.status} ${(await answer.text()).trim()}`);
  }
  return answer.json();
}

/** The job that is wanted, else the first. One that has ended leaves its place to no other. */
function chosenOf(jobs) {
  const named = jobs.filter((one) => one.job === wanted.job);
  const found = wanted.uid ? named.find((one) => String(one.uid) === wanted.uid) : named[0];
  const job = found ?? (shown ? undefined : jobs[0]);
  if (job) {
    wanted = { job: job.job, uid: String(job.uid) };
  }
  return job;
}

function showStatus(status) {
  showDaemon(status);
  byId("token-form").hidden = true;
  byId("layout").hidden = status.jobs === undefined;
  byId("hint").hidden = status.jobs !== undefined;
  setText(byId("hint"), status.hint ?? "");
}

function show(status, job, steps) {
  showJobs(status, job);
  byId("job").hidden = !job && !shown;
  document.title = job ? `${job.job}: ${job.state} – gradsyncd` : "gradsyncd";
  if (!job) {
    setText(byId("job-state"), "gone");
    setText(byId("reason"), "This job has ended. Below is what was seen of it last.");
    return;
  }
  const news = newsOf(shown, job);
  if (news) {
    setText(byId("announcer"), news);
  }
  showJob(job, steps);
  if (steps) {
    showNorms(steps.steps);
    showTimeline(steps);
  }
  shown = job;
}

async function refresh() {
  readAddress();
  const status = await ask("status");
  showStatus(status);
  if (status.jobs !== undefined) {
    const job = chosenOf(status.jobs);
    show(status, job, job ? await ask(`steps?${jobKey(job)}`) : null);
  }
}

function showFailure(error) {
  const silent = (Date.now() - answered) / 1000;
  setText(byId("connection"), `no answer for ${duration(silent)}: ${error.message}`);
}

function askForToken(error) {
  byId("layout").hidden = true;
  byId("token-form").hidden = false;
  setText(byId("token-answer"), error.message);
  setText(byId("connection"), "the daemon wants a token");
  byId("token").focus();
}

async function turn() {
  clearTimeout(timer);
  turns += 1;
  const own = turns;
  try {
    await refresh();
    answered = Date.now();
    setText(byId("connection"), "live");
    byId("connection").classList.remove("lost");
  } catch (error) {
    byId("connection").classList.add("lost");
    if (error instanceof WrongToken) {
      askForToken(error);
      return; // until one is given
    }
    showFailure(error);
  }
  if (own === turns && !document.hidden) {
    timer = setTimeout(turn, EVERY_MS);
  }
}

// ---- what a reader does

/** The command that gets what a part of the page shows; the token stays out of it. */
function curl(what) {
  const path = what === "steps" && shown ? `steps?${jobKey(shown)}` : "status";
  const address = new URL(path, location.origin + location.pathname).href.replaceAll("'", "%27");
  const header = sessionStorage.getItem(TOKEN) ? '-H "Authorization: Bearer $GRADSYNC_TOKEN" ' : "";
  return `curl -s ${header}'${address}'`;
}

/** Browsers have a clipboard for pages of this machine and of https; elsewhere a selection is copied. */
async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", async () => {
    const command = curl(button.dataset.curl);
    await copy(command);
    button.focus();
    setText(byId("announcer"), `copied: ${command}`);
    button.title = command;
  });
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value.trim());
  byId("token").value = "";
  turn();
});

window.addEventListener("hashchange", turn);
document.addEventListener("visibilitychange", () => document.hidden || turn());
turn();
