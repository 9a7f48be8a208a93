// The page: what is typed goes to the server when the typing pauses; what comes back goes to the panels.

import { Panel } from "./panel.js";
import { inLanguage } from "./words.js";

const PAUSE = 300; // milliseconds without a key
const BUSY = 150; // milliseconds before the page says that it waits: most answers come sooner

const byId = (id) => document.getElementById(id);
const [source, status, problem, panelsBox] = ["source", "status", "problem", "panels"].map(byId);
const [firstRun, secondRun, nbest] = ["run-1", "run-2", "nbest"].map(byId);

let models = [];
let limits = {};
let panels = [];
let timer = 0; // of the pause, or of trying again
let running = null; // the requests under way, to be given up when the text changes

class Refused extends Error {
  constructor(status, sentence, retryAfter) {
    super(sentence);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem("qknorm-key");
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "The server cannot be reached; is it still running?", 2);
  }
  if (answer.ok) return answer.json();
  const told = await answer.json().catch(() => ({}));
  throw new Refused(
    answer.status,
    told.error ?? `The server answered with error ${answer.status}.`,
    Number(answer.headers.get("Retry-After")) || 0,
  );
}

function translateWith(panel, lines, signal) {
  const wanted = Number(nbest.value);
  const beam = wanted > panel.model.beam ? wanted : null; // null: the run's own, which no limit holds for
  const body = { text: lines, model: panel.model.name, nbest: wanted, beam, attention: true };
  const headers = { "Content-Type": "application/json" };
  return ask("/translate", { method: "POST", headers, body: JSON.stringify(body), signal });
}

async function translate() {
  clearTimeout(timer);
  running?.abort();
  const mine = (running = new AbortController());
  const lines = source.value.split(/\r?\n/).filter((line) => line.trim());
  if (lines.length === 0) {
    panels.forEach((panel) => panel.show([], { sentences: [] }));
    say("");
    return;
  }
  const waiting = setTimeout(() => {
    status.textContent = "Translating…";
    panels.forEach((panel) => (panel.busy = true));
  }, BUSY);
  try {
    const answers = await Promise.all(panels.map((panel) => translateWith(panel, lines, mine.signal)));
    answers.forEach((answer, i) => panels[i].show(lines, answer));
    say(lines.length === 1 ? "Translated." : `${lines.length} sentences translated.`);
  } catch (error) {
    if (error.name !== "AbortError" && mine === running) failed(error);
  } finally {
    clearTimeout(waiting);
  }
}

// Say what went wrong; where it may pass, try again by itself.
function failed(error) {
  if (!(error instanceof Refused)) throw error;
  panels.forEach((panel) => (panel.stale = true));
  say("", error.message);
  if (error.status === 401) askForKey();
  if (error.retryAfter) timer = setTimeout(models.length ? translate : start, error.retryAfter * 1000);
}

function say(sentence, fault = "") {
  status.textContent = sentence;
  problem.textContent = fault;
  problem.hidden = !fault;
}

function pause() {
  clearTimeout(timer);
  timer = setTimeout(translate, PAUSE);
}

function askForKey() {
  byId("key-form").hidden = false;
  byId("key").focus();
}

// Panels for the chosen runs.
function arrange() {
  const chosen = [firstRun.value, secondRun.value].filter((value, i) => i === 0 || value !== "");
  panels = chosen.map((value, i) => new Panel(models[Number(value)], i + 1));
  panelsBox.replaceChildren(...panels.map((panel) => panel.element));
  panelsBox.classList.toggle("two", panels.length === 2);
  inLanguage(source, models[Number(firstRun.value)].source);
  const most = Math.min(limits.beam, 8);
  const wanted = nbest.value || String(Math.min(most, models[Number(firstRun.value)].beam));
  nbest.replaceChildren(...Array.from({ length: most }, (_, i) => new Option(String(i + 1), String(i + 1))));
  nbest.value = wanted;
  translate();
}

async function start() {
  try {
    ({ models, limits } = await ask("/models"));
  } catch (error) {
    failed(error);
    return;
  }
  say("");
  byId("key-form").hidden = true;
  const options = () => models.map((model, i) => new Option(model.name, String(i)));
  firstRun.replaceChildren(...options());
  secondRun.replaceChildren(new Option("none", ""), ...options());
  if (models.length > 1) secondRun.value = "1";
  byId("beside").hidden = models.length < 2;
  arrange();
}

source.addEventListener("input", (event) => {
  if (!event.isComposing) pause();
});
source.addEventListener("compositionend", pause);
for (const select of [firstRun, secondRun]) select.addEventListener("change", arrange);
nbest.addEventListener("change", translate);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("qknorm-key", byId("key").value);
  start();
});
start();
