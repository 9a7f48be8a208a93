// A line of text as words one can point at, in an order that bidirectional text keeps.

// Put a line into an element as text and words; returns the element of each word; the last is the end.
// Words are inline: as blocks they would stand in the wrong order where directions mix.
export function showWords(line, text, words, make) {
  const found = [];
  let at = 0;
  words.forEach((word, i) => {
    const isEnd = i === words.length - 1;
    const element = make(isEnd ? "⏎" : word);
    const start = isEnd ? text.length : text.indexOf(word, at);
    found.push(element);
    if (start < 0) return; // half a character, which the line shows as it can
    line.append(text.slice(at, start), isEnd ? " " : "", element);
    at = isEnd ? start : start + word.length;
    if (isEnd) {
      element.classList.add("end");
      element.setAttribute("aria-label", "end of the sentence");
    }
  });
  return found;
}

export function plainWord(word) {
  const element = document.createElement("span");
  element.className = "word";
  element.textContent = word;
  return element;
}

export function wordButton(word) {
  const element = plainWord(word);
  element.setAttribute("role", "button");
  element.setAttribute("aria-pressed", "false");
  element.tabIndex = -1;
  return element;
}

// Language and direction of text in a language; of an unknown one the browser decides by its letters.
export function inLanguage(element, code) {
  const rightToLeft = /^(ar|arc|ckb|dv|fa|he|iw|ks|ps|sd|syr|ug|ur|yi)\b/;
  if (code) {
    element.lang = code;
    element.dir = rightToLeft.test(code) ? "rtl" : "ltr";
  } else {
    element.removeAttribute("lang");
    element.dir = "auto";
  }
  return element;
}

// The weights of one target word on the source words: those of a layer and head, or means ("") over them.
export function rowOf(weights, layer, head, target) {
  const layers = layer === "" ? weights : [weights[layer]];
  const rows = layers.flatMap((heads) => (head === "" ? heads : [heads[head]])).map((rows) => rows[target]);
  return rows[0].map((_, s) => rows.reduce((sum, row) => sum + row[s], 0) / rows.length);
}
