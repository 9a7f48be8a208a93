// What one run says: for each sentence its translations, and where the words of the chosen one look.

import { inLanguage, plainWord, rowOf, showWords, wordButton } from "./words.js";

const TOLD = 4; // source words that are named, those looked at most

export class Panel {
  constructor(model, number) {
    this.model = model;
    this.number = number;
    this.element = make("section", "panel");
    this.title = make("h2", null, model.name);
    this.title.id = `panel-${number}`;
    this.element.setAttribute("aria-labelledby", this.title.id);
    this.layer = choice("Layer", model.decoder_layers);
    this.head = choice("Head", model.heads);
    const choices = make("div", "choices");
    choices.append(this.layer.label, this.head.label);
    this.body = make("div", "sentences");
    this.element.append(this.title, make("p", "quiet about", about(model)), choices, this.body);
    for (const each of [this.layer, this.head]) {
      each.select.addEventListener("change", () => this.views.forEach((view) => view.refresh()));
    }
    this.views = [];
  }

  set busy(value) {
    this.element.setAttribute("aria-busy", String(value));
  }

  // Whether what is shown belongs to an earlier text.
  set stale(value) {
    this.busy = false;
    this.element.classList.toggle("stale", value);
  }

  // Show the answer to these lines.
  show(lines, answer) {
    this.views = answer.sentences
      .map((found, i) => ({ found, line: lines[i] }))
      .filter(({ found }) => found.translations.length > 0)
      .map(({ found, line }, i) => new View(this, line, found, `${this.number}-${i}`));
    this.body.replaceChildren(...this.views.map((view) => view.element));
    this.stale = false;
  }
}

// One sentence of a panel.
class View {
  constructor(panel, line, found, name) {
    this.panel = panel;
    this.line = line;
    this.found = found;
    this.pinned = null; // the number of the word that stays chosen
    this.element = make("article", "sentence");
    this.target = inLanguage(make("p", "line target"), panel.model.target);
    this.target.setAttribute("role", "group");
    this.target.setAttribute("aria-label", "Translation, word by word; arrow keys go through it");
    this.source = inLanguage(make("p", "line source"), panel.model.source);
    this.source.setAttribute("role", "group");
    this.source.setAttribute("aria-label", "Source");
    this.looks = make("p", "quiet looks");
    this.looks.setAttribute("aria-live", "polite");
    this.element.append(this.target, this.source, this.looks, this.alternatives(name));
    if (found.note) this.element.append(make("p", "quiet", found.note));
    this.listen();
    this.choose(0);
  }

  // The n best as a list to choose from, with their scores.
  alternatives(name) {
    const box = make("fieldset", "nbest");
    box.append(make("legend", null, "Translations and scores"));
    const list = inLanguage(make("ol"), this.panel.model.target);
    this.found.translations.forEach((each, i) => {
      const label = make("label");
      const radio = make("input");
      radio.type = "radio";
      radio.name = `nbest-${name}`;
      radio.checked = i === 0;
      radio.addEventListener("change", () => this.choose(i));
      const score = make("span", "score", each.score.toFixed(3).replace("-", "−"));
      score.dir = "ltr"; // the sign stays in front
      score.title = `log-probability ${each.log_prob.toFixed(3)}, over the length factor ${each.score.toFixed(3)}`;
      label.append(radio, make("span", "text", each.text), score);
      const item = make("li");
      item.append(label);
      list.append(item);
    });
    box.append(list);
    return box;
  }

  // Show this one of the n best.
  choose(number) {
    const chosen = this.found.translations[number];
    this.attention = chosen.attention;
    this.pinned = null;
    this.target.replaceChildren();
    this.source.replaceChildren();
    this.words = [];
    this.sources = [];
    if (this.attention) {
      this.words = showWords(this.target, chosen.text, this.attention.target, wordButton);
      this.sources = showWords(this.source, this.line, this.attention.source, plainWord);
      this.words[0].tabIndex = 0;
    } else {
      this.target.append(chosen.text);
      this.source.append(this.line);
    }
    this.light(null);
  }

  listen() {
    const numberOf = (event) => this.words.indexOf(event.target.closest(".word"));
    this.target.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse" && numberOf(event) >= 0) this.light(numberOf(event));
    });
    this.target.addEventListener("pointerleave", () => this.light(this.pinned));
    this.target.addEventListener("click", (event) => {
      if (numberOf(event) >= 0) this.pin(numberOf(event));
    });
    this.target.addEventListener("focusin", (event) => {
      if (numberOf(event) >= 0) this.light(numberOf(event));
    });
    this.target.addEventListener("focusout", () => this.light(this.pinned));
    this.target.addEventListener("keydown", (event) => this.key(event, numberOf(event)));
  }

  key(event, number) {
    if (number < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const forward = getComputedStyle(this.target).direction === "rtl" ? -1 : 1;
    const last = this.words.length - 1;
    const to = {
      ArrowRight: number + forward,
      ArrowLeft: number - forward,
      Home: 0,
      End: last,
    }[event.key];
    if (to !== undefined) this.focus(Math.min(Math.max(to, 0), last));
    else if (event.key === "Enter" || event.key === " ") this.pin(number);
    else if (event.key === "Escape" && this.pinned !== null) this.pin(this.pinned);
    else return;
    event.preventDefault();
  }

  focus(number) {
    this.words.forEach((word, i) => (word.tabIndex = i === number ? 0 : -1));
    this.words[number].focus();
  }

  // Keep a word chosen, or let it go again.
  pin(number) {
    this.pinned = this.pinned === number ? null : number;
    this.words.forEach((word, i) => word.setAttribute("aria-pressed", String(i === this.pinned)));
    this.focus(number);
    this.light(number);
  }

  refresh() {
    this.light(this.lit);
  }

  // Show where this word looks; null for none.
  light(number) {
    this.lit = number;
    this.words.forEach((word, i) => word.classList.toggle("lit", i === number));
    const row =
      number === null || !this.attention
        ? null
        : rowOf(this.attention.weights, this.panel.layer.select.value, this.panel.head.select.value, number);
    this.sources.forEach((word, s) => word.style.setProperty("--weight", row ? row[s].toFixed(4) : "0"));
    this.looks.replaceChildren(...this.told(number, row));
  }

  // Where the word looks, in words: the source words it looks at most.
  told(number, row) {
    if (!this.attention) return ["The weights of this translation are not shown."];
    if (row === null) return ["Point at a word of the translation, or tap it, to see where it looks."];
    const most = row
      .map((weight, s) => ({ weight, word: this.nameOf("source", s) }))
      .sort((a, b) => b.weight - a.weight)
      .slice(0, TOLD)
      .filter(({ weight }) => weight >= 0.01);
    const parts = [...this.nameOf("target", number), " looks at "];
    most.forEach(({ weight, word }, i) => {
      parts.push(i ? ", " : "", ...word, ` ${Math.round(weight * 100)}%`);
    });
    return parts;
  }

  // A word as it stands in a sentence of another language and direction.
  nameOf(side, number) {
    const words = this.attention[side];
    if (number === words.length - 1) return ["the end"];
    return ["“", inLanguage(make("bdi", null, words[number]), this.panel.model[side]), "”"];
  }
}

function about(model) {
  const pair = model.source && model.target ? `${model.source} → ${model.target}, ` : "";
  const norm = model.qk_norm ? `QKNorm ${model.qk_norm}` : "scaled dot product";
  const layers = `${model.encoder_layers}+${model.decoder_layers} layers, ${model.heads} heads`;
  const bleu = model.dev_bleu === null ? "" : `, dev BLEU ${model.dev_bleu.toFixed(1)}`;
  const words = model.text === "words" ? "; takes tokenised text" : "";
  return `${pair}${norm}, ${layers}${bleu}${words}`;
}

// A choice of the mean, "", or one of so many, from 0.
function choice(name, count) {
  const label = make("label", null, `${name} `);
  const select = make("select");
  select.append(new Option("mean", ""));
  for (let i = 0; i < count; i++) select.append(new Option(String(i + 1), String(i)));
  label.append(select);
  return { label, select };
}

export function make(tag, name = null, text = null) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== null) element.textContent = text;
  return element;
}
