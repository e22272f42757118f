// The page of paradec serve: translates while one types, and shows the passes of decoders.

import { Passes, make } from "./passes.js";

const TYPED = 120; // milliseconds after which what was typed is translated
const RESTED = 500; // and after which decoders are compared
const TIMES = 5; // of which the median is shown
const PACE = { fast: 40, slow: 500 }; // between a draft and its verdict

const $ = (id) => document.getElementById(id);
const text = $("text");
const panels = {};
let health = null;
let last = ""; // the last translation, the draft of the next
let running = new AbortController();

const still = matchMedia("(prefers-reduced-motion: reduce)");
const pause = (ms, signal) => new Promise((done, failed) => {
  const timer = setTimeout(done, ms);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    failed(signal.reason);
  });
});
const plural = (n, what) => `${n} ${what}${n === 1 ? "" : what.endsWith("s") ? "es" : "s"}`;

function addPanel(id, title, choice) {
  const section = $(id);
  const header = make(section, "header");
  const head = make(header, "h3");
  if (title) make(head, "span", {}, `${title} `);
  const select = make(head, "select", { "aria-label": `decoder: ${section.getAttribute("aria-label")}` });
  const numbers = make(header, "p", { class: "numbers", role: "status" });
  const list = make(section, "ol", { class: "passes", "aria-label": "passes" });
  const told = make(section, "p", { class: "told faint", "aria-live": "polite" });
  panels[id] = { select, numbers, passes: new Passes(list, told), choice };
  select.addEventListener("change", () => run(0));
}

// ---- the server ---------------------------------------------------------------------------------

async function ask(body, signal) {
  const [source, target] = languages();
  const headers = { "content-type": "application/json" };
  if ($("key").value) headers.authorization = `Bearer ${$("key").value}`;
  const answer = await fetch("v1/translations", { method: "POST", headers, signal,
    body: JSON.stringify({ text: text.value, source_language: source, target_language: target, ...body }) });
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

function languages() {
  const name = $("model").value;
  const at = name.lastIndexOf("-");
  return [name.slice(0, at), name.slice(at + 1)];
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let left = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the answer was cut off");
    left += value;
    const whole = left.split("\n\n");
    left = whole.pop();
    for (const message of whole) {
      const data = message.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// ---- what is shown ------------------------------------------------------------------------------

// Draw the passes of a decoder as they come; returns the text, and what it cost. A model that only
// its own decoder fits has none to choose from: it translates.
async function watch(panel, body, signal) {
  panel.passes.clear();
  const decoding = panel.select.value || null;
  const answer = await ask({ ...body, stream: true, passes: decoding !== null, decoding }, signal);
  let translation = "";
  let usage = null;
  for await (const event of events(answer)) {
    if (event.error) throw new Error(event.error);
    if (event.object === "translation.pass") {
      const settle = panel.passes.draw(event.sentence, event.pass);
      const pace = $("slow").checked ? PACE.slow : PACE.fast;
      if (!still.matches || $("slow").checked) await pause(pace, signal);
      settle();
      if ($("slow").checked) await pause(pace, signal);
    } else {
      translation += event.choices[0].delta.content;
      usage = event.usage ?? usage;
    }
  }
  return { translation, usage };
}

function show(panel, ...parts) {
  panel.numbers.replaceChildren();
  for (const [i, [strong, rest]] of parts.entries()) {
    make(panel.numbers, "strong", {}, strong);
    panel.numbers.append(` ${rest}${i + 1 < parts.length ? ", " : ""}`);
  }
}

const counted = (n, what) => [String(n), plural(n, what).slice(String(n).length + 1)];

async function type(signal) {
  const panel = panels.typing;
  const given = last && panel.select.value ? { prediction: last } : {};
  const { translation, usage } = await watch(panel, given, signal);
  last = translation;
  const output = $("translation");
  output.textContent = translation;
  output.lang = languages()[1];
  const parts = [counted(usage.passes, "pass"), counted(usage.completion_tokens, "token")];
  if (given.prediction) parts.push([usage.accepted_prediction_tokens, "of them from the last translation"]);
  show(panel, ...parts);
}

async function compare(panel, signal) {
  const times = [];
  let passes = 0;
  while (times.length < TIMES) {
    const answer = await ask({ decoding: panel.select.value }, signal);
    const { usage } = await answer.json();
    times.push(usage.milliseconds);
    passes = usage.passes;
  }
  const median = times.sort((a, b) => a - b)[(TIMES - 1) / 2];
  show(panel, counted(passes, "pass"), [median.toFixed(1), "ms"]);
  await watch(panel, {}, signal);
}

async function run(wait = TYPED) {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  try {
    await pause(wait, signal);
    $("wrong").hidden = true;
    if (!text.value.trim()) {
      for (const panel of Object.values(panels)) {
        panel.passes.clear();
        show(panel);
      }
      $("translation").textContent = last = "";
      return;
    }
    await type(signal);
    await pause(RESTED, signal);
    if (!$("compared").hidden) {
      await compare(panels.left, signal);
      await compare(panels.right, signal);
    }
    document.body.dataset.done = text.value;
  } catch (error) {
    if (signal.aborted) return;
    $("wrong").textContent = error.message;
    $("wrong").hidden = false;
  }
}

function offer() {
  const fitting = health.decoders[$("model").value];
  $("compared").hidden = $("legend").hidden = fitting.length === 0;
  for (const panel of Object.values(panels)) {
    panel.select.replaceChildren();
    panel.select.hidden = fitting.length === 0;
    for (const name of fitting) make(panel.select, "option", { value: name }, name);
    if (fitting.includes(panel.choice)) panel.select.value = panel.choice;
  }
  last = "";
  run(0);
}

async function start() {
  addPanel("typing", "While you type:", "self_draft");
  addPanel("left", "", "greedy");
  addPanel("right", "", "self_draft");
  health = await (await fetch("health")).json();
  for (const name of health.models) make($("model"), "option", { value: name }, name);
  $("models").hidden = health.models.length === 1;
  $("keys").hidden = !health.needs_key;
  text.addEventListener("input", () => run());
  $("key").addEventListener("change", () => run());
  $("slow").addEventListener("change", () => run(0));
  $("model").addEventListener("change", offer);
  $("asked").addEventListener("submit", (event) => event.preventDefault());
  offer();
}

start();
