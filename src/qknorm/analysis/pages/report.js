"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const two = data.runs.length === 2;
const svgSpace = "http://www.w3.org/2000/svg";

// Elements are made from text, never from markup: nothing a translation says can become part of the page.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}
function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(svgSpace, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const section = (name) => document.getElementById(name);
const fixed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");
const signed = (value, digits = 2) => (value > 0 ? "+" : "") + fixed(value, digits);
const token = (text) => make("bdi", {}, text.replaceAll("▁", "_"));  // a lighter mark for the space before a word
const names = data.runs.map((run) => run.name);
const keys = () => make("p", {}, ...names.map((name, i) => make("span", { class: `key run${i}` }, make("span", { dir: "auto" }, name))));

function table(heads, rows, groups = null) {  // groups: [name, columns] of a row of headings above
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": heads.filter(Boolean).join(", ") },
    make("table", { class: "figures" },
      make("thead", {}, groups && make("tr", {}, ...groups.map(([name, columns]) => make("th", { colspan: columns, scope: "colgroup" }, name))),
        make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell, i) => make(i ? "td" : "th", i ? {} : { scope: "row" }, cell)))))));
}

// Light and dark

const root = document.documentElement;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function setTheme(theme) { root.dataset.theme = theme; window.dispatchEvent(new Event("themechange")); }
setTheme(prefersDark.matches ? "dark" : "light");
prefersDark.addEventListener("change", (event) => setTheme(event.matches ? "dark" : "light"));
section("theme").addEventListener("click", () => setTheme(root.dataset.theme === "dark" ? "light" : "dark"));

// The runs and their scores

const title = two ? `${names[0]} against ${names[1]}` : names[0];
section("title").textContent = title;
document.title = `${title} – qknorm report`;
data.runs.forEach((run, i) => {
  section("about").append(make("p", {}, make("span", { class: `key run${i}` }, make("span", {}, make("b", { dir: "auto" }, run.name)))),
    ...run.about.map((line) => make("p", { class: "faint" }, line)));
});

function scores() {
  const { rows, tests, count } = data.scores;
  const cell = (value, interval) => {
    const span = make("span", {}, fixed(value));
    if (interval) span.append(make("span", { class: "interval" }, `${fixed(interval[0])}…${fixed(interval[1])}`));
    return span;
  };
  section("scores").append(
    make("p", { class: "faint" }, `${count} sentences of ${data.split}; small print: 95% bootstrap intervals.`),
    table(["", ...names, ...(two ? ["difference"] : [])], rows.map((row) => [
      make("span", { title: `${row.meaning}; ${row.signature}` }, row.name), ...row.values.map((value, i) => cell(value, row.intervals[i])),
      ...(two ? [signed(row.values[0] - row.values[1])] : [])])));
  if (!two) return;
  const p = (value) => (value < 0.0001 ? "< 0.0001" : value.toFixed(4));
  section("scores").append(make("h3", { style: "margin-top:1.2rem" }, `Is ${names[0]} better, or only luckier?`),
    table(["", "difference", "95% interval", "p, bootstrap", "p, randomisation"], tests.map((test) => [
      test.name, signed(test.delta), `${signed(test.ci_low)} … ${signed(test.ci_high)}`, p(test.p_value), p(test.p_value_randomization)])),
    make("p", { class: "faint" }, "Paired bootstrap and approximate randomisation over the same sentences."));
}

// Curves

function ticks(low, high, count = 4) {
  if (high === low) { const room = Math.abs(low) * 0.05 || 1; low -= room; high += room; }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let tick = Math.floor(low / step); tick * step < high + step * 0.999; tick++) found.push(tick * step);
  return found;
}
function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return `${+(value / 1000).toPrecision(3)}k`;
  if (size < 0.001) return value.toExponential(0).replace("e-", "e−");
  return String(+value.toPrecision(3)).replace("-", "−");
}
function alone(name, series) {  // a curve of one point is a number
  return make("figure", {}, make("h3", {}, name), ...names.map((_, run) => series.filter((each) => each.run === run).map((each) => short(each.points[0][1])).join(" … ")).map((values, run) =>
    values && make("p", { class: "alone" }, make("span", { class: `key run${run}` }, make("span", {}, values)))));
}
function chart(name, series, xName) {
  if (series.every((each) => each.points.length === 1)) return alone(name, series);
  const points = series.flatMap((each) => each.points);
  const width = 360, height = 190, left = 44, right = 10, top = 8, bottom = 34;
  const ys = ticks(Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[1])));
  const xLow = Math.min(...points.map((p) => p[0])), xHigh = Math.max(...points.map((p) => p[0]));
  const x = (v) => (xHigh === xLow ? (left + width - right) / 2 : left + ((v - xLow) / (xHigh - xLow)) * (width - left - right));
  const y = (v) => top + (1 - (v - ys[0]) / (ys.at(-1) - ys[0])) * (height - top - bottom);
  const last = series.map((each) => `${each.name} ends at ${short(each.points.at(-1)[1])}`).join(", ");
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}: ${last}` });
  for (const tick of ys) picture.append(
    draw("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
    draw("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)));
  const xs = xHigh === xLow ? [xLow] : ticks(xLow, xHigh, 4).filter((t) => t >= xLow && t <= xHigh);
  for (const tick of xs) picture.append(draw("text", { x: x(tick), y: height - bottom + 16, "text-anchor": "middle" }, short(tick)));
  picture.append(draw("text", { x: width - right, y: height - 2, "text-anchor": "end" }, xName));
  for (const each of series) {
    const path = each.points.map(([a, b], i) => `${i ? "L" : "M"}${x(a).toFixed(1)} ${y(b).toFixed(1)}`).join("");
    picture.append(draw("path", { d: path, class: `run${each.run}`, fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-dasharray": each.dashed ? "4 3" : "none" }));
    const few = each.points.length <= 12 ? each.points : [each.points.at(-1)];
    for (const [a, b] of few) picture.append(draw("circle", { cx: x(a), cy: y(b), r: 3, class: `run${each.run}`, fill: "currentColor" }, draw("title", {}, `${each.name}: ${short(b)} at ${xName} ${short(a)}`)));
  }
  return make("figure", {}, make("h3", {}, name), picture);
}
function curves() {
  const wanted = [["Training loss", ["train_loss"]], ["Dev perplexity", ["dev_perplexity"]], ["Dev BLEU", ["dev_bleu"]], ["Learning rate", ["learning_rate"]],
    ["Target subwords a second", ["tokens_per_second"]], ["Largest |logit| on dev", ["max_logit"]], ["g, smallest and (dashed) largest", ["g_min", "g_max"]]];
  const place = section("curves").querySelector(".charts");
  if (two) place.before(keys());
  for (const [name, wantedKeys] of wanted) {
    const series = data.runs.flatMap((run, i) => wantedKeys.map((key, j) => ({
      name: run.name, run: i, dashed: j > 0, points: run.history.filter((row) => row[key] !== null).map((row) => [row.step, row[key]]) })));
    const there = series.filter((each) => each.points.length);
    if (there.length) place.append(chart(name, there, "update"));
  }
  if (!place.children.length) place.append(make("p", { class: "note" }, "The run has no history yet."));
}

// Sentences

function said(segments) {
  return segments.map(([text, mark]) => {
    const shown = [mark & 1 ? "wrong" : "", mark & 2 ? "changed" : ""].join(" ").trim();
    return shown ? make("span", { class: shown }, text) : text;
  });
}
function sentences() {
  const gain = (s) => (two ? s.bleu[0] - s.bleu[1] : s.bleu[0]);
  const orders = two
    ? { "largest gain first": (a, b) => gain(b) - gain(a), "largest loss first": (a, b) => gain(a) - gain(b), "as in the text": (a, b) => a.line - b.line }
    : { "worst first": (a, b) => gain(a) - gain(b), "best first": (a, b) => gain(b) - gain(a), "as in the text": (a, b) => a.line - b.line };
  const order = make("select", {}, ...Object.keys(orders).map((name) => make("option", {}, name)));
  const list = make("div"), more = make("button", { type: "button" }, "Show 20 more"), count = make("span", { class: "faint", "aria-live": "polite" });
  let shown = 0, sorted = [];
  const page = () => {
    for (const sentence of sorted.slice(shown, shown + 20)) {
      const rows = [["source", "", [sentence.source]], ["reference", "", said(sentence.reference)],
        ...sentence.said.map((segments, i) => [names[i], fixed(sentence.bleu[i], 1), said(segments)])];
      const label = (name, value, i) => make("div", { class: `label${i > 1 ? ` run${i - 2}` : ""}`, dir: "auto" }, name, value ? " " : null, value ? make("b", {}, value) : null);
      list.append(make("div", { class: "sentence" },
        make("div", { class: "label whole" }, `line ${sentence.line}`, ...(two ? [": ", make("b", {}, `${signed(gain(sentence), 1)} sentence BLEU`)] : [])),
        ...rows.flatMap(([name, value, text], i) => [label(name, value, i), make("div", { class: "text", dir: "auto" }, ...text)])));
    }
    shown = Math.min(shown + 20, sorted.length);
    count.textContent = `${shown} of ${sorted.length}`;
    more.disabled = shown === sorted.length;
  };
  const sort = () => { sorted = [...data.sentences].sort(orders[order.value]); shown = 0; list.replaceChildren(); page(); };
  order.addEventListener("change", sort);
  more.addEventListener("click", page);
  section("sentences").append(
    make("p", { class: "faint" }, make("span", { class: "wrong" }, "Marked"), " words are not where the reference has them",
      "; ", make("span", { class: "changed" }, "dotted"), two ? " ones are where the two runs differ" : " ones of the reference are missing in the translation", ". Numbers are sentence BLEU."),
    make("div", { class: "controls" }, make("label", {}, "Order ", order), count), list, make("div", { class: "controls" }, more));
  sort();
}

// Words and lengths

function bars(name, key, buckets, percent) {
  const labels = [...new Set(buckets.flat().map((b) => b.name))];
  const all = labels.map((label) => buckets.map((of) => of.find((b) => b.name === label)));
  const width = 460, row = two ? 38 : 26, left = 76, right = 44, height = labels.length * row + 6;
  const high = percent ? 1 : Math.max(1, ...buckets.flat().map((b) => b.figures[key]));
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${name}; the table below has the numbers` });
  all.forEach((found, i) => {
    picture.append(draw("text", { x: left - 8, y: i * row + row / 2 + 3, "text-anchor": "end" }, labels[i]));
    found.forEach((bucket, j) => {
      if (!bucket) return;
      const thick = (row - 10) / found.length, length = (bucket.figures[key] / high) * (width - left - right), y = i * row + 4 + j * thick;
      picture.append(draw("rect", { x: left, y, width: Math.max(length, 1), height: thick - 1, rx: 2, class: `run${j}`, fill: "currentColor" }),
        draw("text", { x: left + length + 5, y: y + thick / 2 + 3.5 }, percent ? `${(100 * bucket.figures[key]).toFixed(0)}%` : bucket.figures[key].toFixed(1)));
    });
  });
  return make("figure", {}, make("h3", {}, name), picture);
}
function buckets() {
  const rows = (found, figures, form) => {
    const labels = [...new Set(found.flat().map((b) => b.name))];
    return labels.map((label) => {
      const each = found.map((of) => of.find((b) => b.name === label));
      return [label, String((each.find(Boolean)).count), ...figures.flatMap((key) => each.map((b) => (b ? form(b.figures[key]) : "–")))];
    });
  };
  const heads = (figures) => (two ? figures.flatMap(() => names) : figures);
  const groups = (figures) => (two ? [["", 2], ...figures.map((figure) => [figure, 2])] : null);
  const percent = (v) => `${(100 * v).toFixed(1)}%`;
  section("buckets").append(...(two ? [keys()] : []), make("div", { class: "pairs" },
    make("div", {}, bars("Words by how often the training text has them: F1", "f1", data.frequency, true),
      make("p", { class: "faint" }, "A word is right as often as both translation and reference have it."),
      table(["in training", "words", ...heads(["recall", "F1"])], rows(data.frequency, ["recall", "f1"], percent), groups(["recall", "F1"]))),
    make("div", {}, bars("Sentences by length of the reference: BLEU", "bleu", data.length, false),
      make("p", { class: "faint" }, "BLEU is smoothed, and of the n-gram orders that are there."),
      table(["words", "sentences", ...heads(["BLEU", "chrF"])], rows(data.length, ["bleu", "chrf"], (v) => v.toFixed(1)), groups(["BLEU", "chrF"])))));
}

// Heat maps

function levels(packed) {
  if (!packed.bytes) { const text = atob(packed.levels); packed.bytes = Uint8Array.from(text, (c) => c.charCodeAt(0)); }
  return packed.bytes;
}
function head(packed, layer, number) {  // (T × S) weights of one head, or the mean of a layer's heads
  const [, H, T, S] = packed.shape, bytes = levels(packed), found = new Float32Array(T * S);
  const chosen = number < 0 ? [...Array(H).keys()] : [number];
  for (const h of chosen) for (let i = 0; i < T * S; i++) found[i] += (bytes[(layer * H + h) * T * S + i] / 255) ** 2 / chosen.length;
  return found;
}
function maps() {
  const place = section("maps");
  if (!data.maps.length) { place.append(make("p", { class: "note" }, "No sentence was asked for.")); return; }
  const state = { sentence: 0, kind: "cross", layer: 0, head: 0 };
  const sentence = make("select", {}, ...data.maps.map((m, i) => make("option", { value: i }, `line ${m.line}: ${data.sentences[m.line - 1].source}`)));
  const kind = make("select", {}, ...[["cross", "to the source (cross)"], ["encoder", "in the encoder"], ["decoder", "in the decoder"]].map(([value, name]) => make("option", { value }, name)));
  const layer = make("select"), number = make("select");
  const step = (name, by, label) => { const b = make("button", { type: "button", "aria-label": label }, by < 0 ? "‹" : "›"); b.addEventListener("click", () => move(name, by)); return b; };
  const view = make("div", { class: "both", tabindex: "0", role: "group", "aria-label": "Heat maps; the arrow keys step through heads and layers, Page Up and Page Down through sentences" });
  const note = make("p", { class: "said faint", "aria-live": "polite" });
  const deepest = () => Math.max(...data.maps[state.sentence].runs.map((run) => run[state.kind].shape[0]));
  const widest = () => Math.max(...data.maps[state.sentence].runs.map((run) => run[state.kind].shape[1]));
  function move(name, by) {
    const sizes = { sentence: data.maps.length, layer: deepest(), head: widest() };
    if (name === "head") { // −1 is the mean
      state.head = ((state.head + 1 + by + sizes.head + 1) % (sizes.head + 1)) - 1;
    } else state[name] = (state[name] + by + sizes[name]) % sizes[name];
    show();
  }
  view.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: ["head", 1], ArrowLeft: ["head", -1], ArrowDown: ["layer", 1], ArrowUp: ["layer", -1], PageDown: ["sentence", 1], PageUp: ["sentence", -1] };
    if (!moves[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(...moves[event.key]);
  });
  sentence.addEventListener("change", () => { state.sentence = +sentence.value; show(); });
  kind.addEventListener("change", () => { state.kind = kind.value; show(); });
  layer.addEventListener("change", () => { state.layer = +layer.value; show(); });
  number.addEventListener("change", () => { state.head = +number.value; show(); });

  const heading = () => `Layer ${state.layer + 1}, ${state.head < 0 ? "mean of its heads" : `head ${state.head + 1}`}`;
  function show() {
    state.layer = Math.min(state.layer, deepest() - 1);
    state.head = Math.min(state.head, widest() - 1);
    layer.replaceChildren(...[...Array(deepest()).keys()].map((i) => make("option", { value: i }, String(i + 1))));
    number.replaceChildren(make("option", { value: -1 }, "mean"), ...[...Array(widest()).keys()].map((i) => make("option", { value: i }, String(i + 1))));
    sentence.value = state.sentence; kind.value = state.kind; layer.value = state.layer; number.value = state.head;
    note.textContent = `${heading()}. Point at a cell for its weight, or go there with Tab and the arrow keys.`;
    view.replaceChildren(...data.maps[state.sentence].runs.map((run, i) => make("div", {}, two ? make("h3", {}, make("span", { class: `key run${i}` }, make("span", { dir: "auto" }, names[i]))) : null,
      thumbnails(run[state.kind]), large(run[state.kind]))));
  }
  function thumbnails(packed) {
    const [L, H, T, S] = packed.shape, size = H > 8 ? 30 : 44;
    const grid = make("div", { class: "heads", style: `grid-template-columns: repeat(${H}, ${size}px)` });
    const rgb = getComputedStyle(root).getPropertyValue("--cell").split(",").map(Number);
    for (let l = 0; l < L; l++) for (let h = 0; h < H; h++) {
      const canvas = make("canvas", { width: S, height: T }), context = canvas.getContext("2d"), image = context.createImageData(S, T), bytes = levels(packed);
      for (let i = 0; i < T * S; i++) {
        const column = packed.rtl ? S - 1 - (i % S) : i % S, at = 4 * (Math.floor(i / S) * S + column);
        image.data.set([...rgb, bytes[(l * H + h) * T * S + i]], at);
      }
      context.putImageData(image, 0, 0);
      const name = `layer ${l + 1}, head ${h + 1}`;
      const button = make("button", { type: "button", title: name, "aria-label": name, "aria-pressed": l === state.layer && h === state.head, tabindex: "-1" }, canvas);
      button.addEventListener("click", () => { state.layer = l; state.head = h; show(); view.focus({ preventScroll: true }); });
      grid.append(button);
    }
    return grid;
  }
  function byKeys(body, rtl) {  // one cell is in the tab order; from it the arrow keys go to the others
    const cells = [...body.rows].map((row) => [...row.cells].slice(1));
    body.addEventListener("keydown", (event) => {
      const t = cells.findIndex((row) => row.includes(event.target)), on = rtl ? -1 : 1;
      if (t < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
      const s = cells[t].indexOf(event.target), last = cells[t].length - 1;
      const places = { ArrowRight: [t, s + on], ArrowLeft: [t, s - on], ArrowDown: [t + 1, s], ArrowUp: [t - 1, s], Home: [t, 0], End: [t, last] };
      if (!places[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      const [row, column] = places[event.key], next = cells[row] && cells[row][column];
      if (!next) return;
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  }
  function large(packed) {
    const [L, H, T, S] = packed.shape;
    if (state.layer >= L || state.head >= H) return make("p", { class: "note" }, "This run has no such layer or head.");
    const weights = head(packed, state.layer, state.head);
    const body = make("tbody");
    for (let t = 0; t < T; t++) {
      const row = make("tr", {}, make("th", { scope: "row" }, token(packed.rows[t])));
      for (let s = 0; s < S; s++) {
        const weight = weights[t * S + s];
        const cell = make("td", { style: `background: rgba(var(--cell), ${Math.sqrt(weight).toFixed(3)})`, "aria-label": weight.toFixed(2) });
        const say = () => note.replaceChildren(token(packed.rows[t]), " → ", token(packed.columns[s]), `: ${weight.toFixed(3)}`);
        cell.addEventListener("mouseenter", say);
        cell.addEventListener("focus", say);
        cell.tabIndex = t || s ? -1 : 0;
        row.append(cell);
      }
      body.append(row);
    }
    byKeys(body, packed.rtl);
    const tops = packed.columns.map((text) => make("th", { scope: "col" }, make("div", {}, token(text))));
    return make("div", {}, make("p", { class: "faint" }, heading()), make("div", { class: "scroll" },
      make("table", { class: "map", dir: packed.rtl ? "rtl" : "ltr", "aria-label": heading() }, make("thead", {}, make("tr", {}, make("td", { style: "border:0" }), ...tops)), body)));
  }
  place.append(
    make("p", { class: "faint" }, "Rows look, columns are looked at; colour is the square root of the weight. In the decoder and in cross-attention a row is the token being predicted. With the maps chosen, arrow keys step through heads (← →) and layers (↑ ↓), Page Up and Page Down through sentences; Tab goes on to the cells."),
    make("div", { class: "controls" }, make("label", {}, "Sentence ", sentence), make("label", {}, "Attention ", kind),
      make("span", {}, make("label", {}, "Layer ", layer), step("layer", -1, "previous layer"), step("layer", 1, "next layer")),
      make("span", {}, make("label", {}, "Head ", number), step("head", -1, "previous head"), step("head", 1, "next head"))), note, view);
  window.addEventListener("themechange", show);
  show();
}

// g and logits

function modules() {
  const g = (values) => (values === null ? "–" : values.length === 1 ? fixed(values[0]) : `${fixed(Math.min(...values))}…${fixed(Math.max(...values))}`);
  section("modules").append(make("p", { class: "faint" }, `Of the best weights; the largest |logit| over up to 200 sentences of ${data.split}.`), make("div", { class: "pairs" },
    ...data.runs.map((run, i) => make("div", {}, two ? make("h3", {}, make("span", { class: `key run${i}` }, make("span", { dir: "auto" }, run.name))) : null,
      table(["module", "g", "largest |logit|"], run.modules.map((m) => [`${m.kind}, layer ${m.layer}`, g(m.g), m.max_logit === null ? "not finite" : fixed(m.max_logit)]))))));
}

scores(); curves(); sentences(); buckets(); maps(); modules();
section("footer").textContent = `Made by qknorm ${data.version}. This page loads nothing from anywhere.`;
})();
