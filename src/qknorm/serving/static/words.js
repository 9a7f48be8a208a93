// A line of text as words one can point at, in an order that bidirectional text keeps.

export const END = "</s>";

// Put a line into an element as text and words; returns the element of each word, null where it has none.
// Words are inline: as blocks they would stand in the wrong order where directions mix.
export function showWords(line, text, words, make) {
  const found = [];
  let at = 0;
  for (const word of words) {
    const start = word === END ? -1 : text.indexOf(word, at);
    if (word === END) {
      line.append(text.slice(at));
      at = text.length;
    } else if (start >= 0) {
      line.append(text.slice(at, start));
      at = start + word.length;
    }
    const element = make(word === END ? "⏎" : word);
    if (word === END) {
      line.append(" ");
      element.classList.add("end");
      element.setAttribute("aria-label", "end of the sentence");
    }
    line.append(element);
    found.push(element);
  }
  line.append(text.slice(at));
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
