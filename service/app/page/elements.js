// The document and the words of the page: elements that are changed only where a text changes, so that what a reader
// selects or focuses stays; numbers, sizes and times as `gradsyncd status` writes them.

export const byId = (id) => document.getElementById(id);

export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** The children of `parent` become as many as there are items, made by `make` and told by `tell`. */
export function fill(parent, items, make, tell) {
  while (parent.children.length > items.length) {
    parent.lastElementChild.remove();
  }
  items.forEach((item, index) => {
    if (index === parent.children.length) {
      parent.append(make());
    }
    tell(parent.children[index], item);
  });
}

/** Rows of a table. A cell is a text, or {text, bad: true}; the first heads its row. */
export function fillTable(table, rows) {
  const cell = (index) => (index === 0 ? element("th", { scope: "row" }) : element("td"));
  fill(table.tBodies[0], rows, () => element("tr"), (row, cells) => {
    while (row.children.length < cells.length) {
      row.append(cell(row.children.length));
    }
    cells.forEach((content, index) => {
      const { text, bad } = typeof content === "object" ? content : { text: content, bad: false };
      setText(row.children[index], String(text));
      row.children[index].classList.toggle("bad", bad);
    });
  });
}

/** JSON has no NaN and no infinity: they travel as texts. */
export const value = (number) => Number(number);

export function numeral(number) {
  const found = value(number);
  return Number.isFinite(found) ? String(Number(found.toPrecision(6))) : "not finite";
}

export const threshold = (number) => (value(number) === Infinity ? "no threshold" : numeral(number));

export function bytes(count) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let scaled = count;
  for (; scaled >= 1024 && unit < units.length - 1; unit += 1) {
    scaled /= 1024;
  }
  return `${unit === 0 ? scaled : scaled.toFixed(1)} ${units[unit]}`;
}

export function duration(seconds) {
  if (seconds < 0.0995) {
    return seconds < 0.000995 ? `${Math.round(seconds * 1e6)} µs` : `${Number((seconds * 1e3).toPrecision(3))} ms`;
  }
  if (seconds < 10) {
    return `${seconds.toFixed(1)} s`;
  }
  const whole = Math.floor(seconds);
  if (whole < 120) {
    return `${whole} s`;
  }
  return whole < 7200
    ? `${Math.floor(whole / 60)} min ${whole % 60} s`
    : `${Math.floor(whole / 3600)} h ${Math.floor(whole / 60) % 60} min`;
}

/** "rank 3", "ranks 0, 1, 2 and 17 more". */
export function rankList(ranks, count = ranks.length) {
  const named = ranks.slice(0, 20);
  const more = count - named.length;
  return `${count === 1 ? "rank" : "ranks"} ${named.join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
}
