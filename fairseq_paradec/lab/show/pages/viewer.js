// Draws the sentences of a trace page (viewer.py). A sentence's block of data is read when it is
// shown, a view is drawn when it is opened. Texts of the data only ever become text nodes.

const root = document.getElementById("viewer");
const terms = JSON.parse(document.querySelector("script.terms").textContent);
const blocks = [...document.querySelectorAll("script.sentence")];
const SVG = "http://www.w3.org/2000/svg";
const SECONDS_PER_PASS = 0.7;
// Of earlier passes' tokens, how many stand before a pass's own.
const BEFORE = 12;
const MOST_BEFORE = 30;
// From so many tokens of a panel on, lines that cannot be seen are not laid out.
const MANY = 3000;

const state = { index: 0, view: root.dataset.view, pass: 0, colour: "origin" };
let sentence = null; // the block of data that is shown
let timer = null; // of the play button

// ---- elements -----------------------------------------------------------------------------------

function make(parent, tag, attributes = {}, text = null) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) element.setAttribute(name, value);
  }
  if (text !== null) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

function draw(parent, tag, attributes, text = null) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

const direction = (rtl) => (rtl ? "rtl" : "ltr");
const word = (number) => sentence.words[number];
const at = (columns, name, i) => (columns[name] ? columns[name][i] : null);
const stateName = (number) => terms.states[number];
const wayOf = (columns, i) => (at(columns, "direction", i) === null ? null : word(columns.direction[i]));
const plural = (count, name, ending = "s") => `${count} ${name}${count === 1 ? "" : ending}`;

// ---- the controls of viewer.html -----------------------------------------------------------------

const [back, list, onward, count, views, colours, play, slider, after, legend, head, panels, tip] =
  [".back", ".sentences", ".onward", ".count", ".views", ".colours", ".play", ".pass", ".after",
    ".legend", ".head", ".panels", "#tip"].map((selector) => root.querySelector(selector));
const viewInputs = Object.fromEntries(
  [...views.querySelectorAll("input")].map((input) => [input.value, input]));
root.hidden = false;

// ---- sentences ----------------------------------------------------------------------------------

// A block begins with the sentence's name, so that the list needs no more of it; a name that is
// very long is read with all the rest.
function nameOf(block) {
  const match = /^\{"name":("(?:[^"\\]|\\.)*")/.exec(block.firstChild.substringData(0, 2000));
  return match ? JSON.parse(match[1]) : JSON.parse(block.textContent).name;
}

const slug = (name) => name.replace(/\s+/g, "-");

const names = blocks.map(nameOf);
for (const [i, name] of names.entries()) make(list, "option", { value: i }, name);

function fromAddress() {
  let wanted = location.hash.slice(1);
  try {
    wanted = decodeURIComponent(wanted);
  } catch {
    // what is no encoding is taken as it stands
  }
  return Math.max(0, names.findIndex((name) => slug(name) === wanted));
}

function show(index) {
  stop();
  state.index = index;
  sentence = JSON.parse(blocks[index].textContent);
  for (const panel of sentence.panels) panel.output = panel.origins.token;
  state.pass = lastPass();
  list.value = index;
  back.disabled = index === 0;
  onward.disabled = index === blocks.length - 1;
  count.textContent = `${index + 1} of ${plural(blocks.length, "sentence")}`;
  slider.max = state.pass;
  slider.disabled = play.disabled = state.pass === 0;
  showHead();
  showPanels();
  showView();
}

// Names may come twice: those that follow have no address of their own.
function choose(index) {
  if (index < 0 || index >= blocks.length || index === state.index) return;
  const target = `#${encodeURIComponent(slug(names[index]))}`;
  if (names.indexOf(names[index]) === index && location.hash !== target) location.hash = target;
  if (index !== state.index) show(index);
}

// The last pass that had to do with the output: a beam may go on for other hypotheses.
function active(panel) {
  return panel.passes.findLastIndex((lines) => lines.verifier.token.length) + 1;
}

const lastPass = () => Math.max(0, ...sentence.panels.map(active));

function showHead() {
  head.replaceChildren();
  make(head, "h2", { class: "name" }, sentence.name);
  const line = make(head, "p", { class: "source", dir: direction(sentence.rtl) });
  if (sentence.source === null) line.textContent = "(the source is not in the trace)";
  for (const number of sentence.source || []) {
    make(line, "span", { class: "word" }, word(number));
    line.append(" ");
  }
  for (const file of sentence.missing) {
    make(head, "p", { class: "missing" }, `${file} does not have this sentence.`);
  }
}

// ---- panels -------------------------------------------------------------------------------------

function showPanels() {
  hideTip();
  panels.replaceChildren();
  for (const [number, panel] of sentence.panels.entries()) {
    const section = make(panels, "section", { class: "panel", "data-panel": number,
      "data-decoding": panel.decoding, "aria-label": panel.decoding });
    const title = make(section, "h3");
    make(title, "span", { class: "decoding" }, panel.decoding);
    if (panel.file) make(title, "span", { class: "file" }, panel.file);
    for (const flag of panel.flags) make(title, "code", { class: "flag" }, flag);
    const numbers = make(section, "dl", { class: "numbers" });
    for (const [name, value] of Object.entries(panel.numbers)) {
      const pair = make(numbers, "div");
      make(pair, "dt", {}, name);
      make(pair, "dd", { "data-number": name }, value);
    }
    if (number > 0) make(section, "p", { class: "same faint" }, likeTheFirst(panel));
    const progress = make(section, "div", { class: "progress" });
    make(progress, "progress", { max: panel.output.length, "aria-label": "tokens written" });
    make(progress, "span", { class: "done faint" });
    make(section, "div", { class: "body" });
  }
}

function likeTheFirst(panel) {
  const first = sentence.panels[0];
  const other = panel.output.findIndex((token, i) => token !== first.output[i]);
  if (other < 0 && panel.output.length === first.output.length) {
    return "The same output as the first.";
  }
  return `Another output than the first, from position ${other < 0 ? panel.output.length : other} on.`;
}

const DRAWERS = { output: drawOutput, passes: drawPasses, steps: drawSteps,
  dependencies: drawDependencies, tree: drawTree };

function showView() {
  const some = {
    dependencies: sentence.panels.some((panel) => panel.graph || panel.no_graph),
    tree: sentence.panels.some((panel) => panel.tree),
  };
  for (const [name, there] of Object.entries(some)) viewInputs[name].parentElement.hidden = !there;
  const view = some[state.view] === false ? "output" : state.view;
  root.dataset.view = view;
  viewInputs[view].checked = true;
  colours.hidden = view !== "output";
  hideTip();
  for (const section of panels.children) {
    const panel = sentence.panels[section.dataset.panel];
    const body = section.querySelector(".body");
    body.replaceChildren();
    body.className = "body";
    if (panel.output.length) DRAWERS[view](panel, body, section.dataset.panel);
    else make(body, "p", { class: "faint" }, "(no output)");
  }
  showLegend(view);
  showPass();
}

// ---- tokens -------------------------------------------------------------------------------------

// A token that can be pointed at; `what` says how it is to be described.
function token(parent, what, number, position, pass, name, classes, text) {
  const element = make(parent, "span", { class: `token ${classes}`, tabindex: "-1", role: "img",
    "aria-label": text ? `${text}, ${name}` : terms.meanings.open,
    "data-what": what, "data-panel": number, "data-position": position, "data-pass": pass });
  if (name) element.dataset.state = name;
  make(element, "span", { class: "word" }, text);
  return element;
}

function drawOutput(panel, body, number) {
  const line = make(body, "div", { class: "line boxes", dir: direction(panel.rtl), role: "group",
    "aria-label": `output of ${panel.decoding}` });
  const { origins } = panel;
  for (const [position, written] of panel.output.entries()) {
    const name = stateName(origins.state[position]);
    const pass = origins.pass_number[position];
    const way = wayOf(origins, position);
    const classes = way ? `box written way${wayNumber(way)}` : `box ${name}`;
    const box = token(line, "origin", number, position, pass, name, classes, word(written));
    make(box, "small", { dir: "ltr" }, way ? `${pass} · ${way}` : marked(name, String(pass)));
    if (state.colour === "pass") paint(box, pass);
  }
}

const wayNumber = (way) => (Number.parseInt(way, 10) - 1) % 4;

function marked(name, text) {
  const [left, right] = terms.marks[name];
  return `${left}${text}${right}`;
}

// From dark blue to yellow by way of green, dark to light: readable in any kind of colour vision.
const RAMP = [[68, 57, 131], [49, 104, 142], [33, 145, 140], [79, 195, 107], [253, 231, 37]];

function paint(box, pass) {
  const place = lastPass() > 1 ? ((pass - 1) / (lastPass() - 1)) * (RAMP.length - 1) : 0;
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  const mixed = RAMP[low].map((part, i) => Math.round(part + (RAMP[low + 1][i] - part) * (place - low)));
  const light = 0.299 * mixed[0] + 0.587 * mixed[1] + 0.114 * mixed[2];
  box.style.background = `rgb(${mixed})`;
  box.style.borderColor = `rgb(${mixed})`;
  box.style.color = light > 125 ? "#000" : "#fff";
}

// ---- passes -------------------------------------------------------------------------------------

function drawPasses(panel, body, number) {
  for (const [i, lines] of panel.passes.slice(0, active(panel)).entries()) {
    const row = make(body, "div", { class: "row", "data-pass": i + 1, role: "group",
      "aria-label": `pass ${i + 1}` });
    make(row, "span", { class: "number" }, i + 1);
    const line = make(row, "div", { class: "line pairs", dir: direction(panel.rtl) });
    if (panel.reordered) drawWritten(panel, line, number, lines, i + 1);
    else drawPairs(panel, line, number, lines, i + 1);
  }
  body.classList.toggle("many", body.querySelectorAll(".token").length > MANY);
  const rest = panel.passes.length - active(panel);
  if (rest) {
    make(body, "p", { class: "faint rest" }, `${plural(rest, "more pass", "es")}, in which the ` +
      "search went on with other hypotheses.");
  }
}

function drawPairs(panel, line, number, lines, pass) {
  const labels = make(line, "span", { class: "pair labels", "aria-hidden": "true" });
  if (lines.draft.token.length) make(labels, "span", {}, "D");
  make(labels, "span", {}, "V");
  const first = lines.start > MOST_BEFORE ? lines.start - BEFORE : 0;
  if (first) make(line, "span", { class: "faint more" }, `${first} tokens ⋯`);
  for (let position = first; position < lines.start; position += 1) {
    earlier(panel, line, number, position, pass);
  }
  const length = Math.max(lines.draft.token.length, lines.verifier.token.length);
  for (let i = 0; i < length; i += 1) {
    const pair = make(line, "span", { class: "pair" });
    if (lines.draft.token.length) cell(pair, "draft", number, lines.draft, i, pass);
    if (i < lines.verifier.token.length) cell(pair, "verifier", number, lines.verifier, i, pass);
  }
}

function cell(parent, what, number, cells, i, pass) {
  if (i >= cells.token.length) {
    make(parent, "span", { class: "token none" }, "\u00a0");
    return;
  }
  const name = stateName(cells.state[i]);
  token(parent, what, number, cells.position[i], pass, name, name, word(cells.token[i]));
}

function earlier(panel, line, number, position, pass) {
  token(line, "origin", number, position, pass, "previous", "previous", word(panel.output[position]));
  line.append(" ");
}

// A model that writes in another order: the whole output as it fills up.
function drawWritten(panel, line, number, lines, pass) {
  const mine = new Map(lines.verifier.position.map((position, i) => [position, i]));
  for (let position = 0; position < panel.output.length; position += 1) {
    if (mine.has(position)) cell(line, "verifier", number, lines.verifier, mine.get(position), pass);
    else if (panel.origins.pass_number[position] < pass) earlier(panel, line, number, position, pass);
    else token(line, "open", number, position, pass, "open", "open", "");
    line.append(" ");
  }
}

// ---- steps --------------------------------------------------------------------------------------

function drawSteps(panel, body, number) {
  for (const [i, step] of panel.steps.slice(0, active(panel)).entries()) {
    const row = make(body, "div", { class: "row step", "data-pass": step.pass,
      "data-step": i + 1 });
    make(row, "span", { class: "number" }, i + 1);
    make(row, "span", { class: "size faint" }, plural(step.position.length, "token"));
    const line = make(row, "div", { class: "line", dir: direction(panel.rtl) });
    for (const position of step.position) {
      const name = stateName(panel.origins.state[position]);
      const text = word(panel.output[position]);
      token(line, "origin", number, position, panel.origins.pass_number[position], name, "plain", text);
      line.append(" ");
    }
  }
  make(body, "p", { class: "faint" }, panel.steps_summary);
}

// ---- dependencies -------------------------------------------------------------------------------

const CELL = { width: 36, height: 20, left: 44 };
const measure = document.createElement("canvas").getContext("2d");
measure.font = "13px system-ui, sans-serif";

function drawDependencies(panel, body, number) {
  const { graph } = panel;
  if (!graph) {
    make(body, "p", { class: "faint no-graph" }, panel.no_graph ? `No graph: ${panel.no_graph}.` :
      "Only Jacobi decoding and greedy search have a graph: their passes guess the output itself.");
    return;
  }
  make(body, "h4", {}, "What each token waited for");
  drawGraph(panel, graph, scroller(body, `graph of ${panel.decoding}`), number);
  make(body, "h4", {}, "Passes and positions");
  drawMatrix(panel, graph, scroller(body, `passes and positions of ${panel.decoding}`), number);
}

const scroller = (body, label) => make(body, "div", { class: "scroll", role: "region",
  "aria-label": label });

function fit(text, width) {
  if (measure.measureText(text).width <= width) return text;
  const letters = [...text];
  while (letters.length > 1 && measure.measureText(`${letters.join("")}…`).width > width) {
    letters.length = Math.floor(letters.length * 0.9);
  }
  return `${letters.join("")}…`;
}

// Boxes in columns from left to right, with curves between them. A node has its token's number, its
// column, its row (from the middle of a column's height or from the top), the pass that made it, a
// class and a small text; `links` are pairs of nodes, the right one first; `hot(i)` are those to
// point out at node i, and `isOpen(pass, after)` says what is not there yet.
function drawNodes(parent, nodes, links, look) {
  const texts = nodes.map((node) => fit(word(node.token), look.most - look.around));
  const widths = [];
  for (const [i, { column }] of nodes.entries()) {
    const width = Math.ceil(measure.measureText(texts[i]).width) + look.around;
    widths[column] = Math.max(widths[column] || look.least, width);
  }
  const lefts = widths.map((_, column) =>
    widths.slice(0, column).reduce((sum, width) => sum + width + look.between, 1));
  const places = nodes.map(({ column, row }) =>
    ({ x: lefts[column], y: look.top + row * look.apart, width: widths[column] }));
  const bottom = Math.max(...places.map((place) => place.y)) + look.apart;
  const svg = draw(parent, "svg", { class: `graph ${look.what}`, height: bottom,
    width: lefts.at(-1) + widths.at(-1) + 1 });
  const edges = draw(svg, "path", { class: "edges" });
  const hot = draw(svg, "path", { class: "edges hot" });
  for (const [i, node] of nodes.entries()) {
    const { x, y, width } = places[i];
    const group = draw(svg, "g", { class: `token node ${node.class}`, tabindex: -1, role: "img",
      "data-what": look.what, "data-panel": look.panel, "data-position": i, "data-pass": node.pass });
    draw(group, "rect", { x, y, width, height: look.height, rx: 4 });
    look.write(group, node, texts[i], { x, y, width });
  }
  const curves = (some) => some.map(([from, to]) => curve(places[from], places[to], look)).join("");
  svg.drawEdges = (pass) => edges.setAttribute("d",
    curves(links.filter(([from]) => !look.isOpen(nodes[from].pass, pass))));
  svg.drawHot = (i) => hot.setAttribute("d", i === null ? "" : curves(look.hot(i)));
  return { svg, places };
}

// From a box back to one in an earlier column, to which an arrow leads.
function curve(from, to, { height, arrow }) {
  const [x1, y1] = [from.x, from.y + height / 2];
  const [x2, y2] = [to.x + to.width + (arrow ? 6 : 0), to.y + height / 2];
  const middle = arrow ? [(x1 + x2) / 2, (x1 + x2) / 2] : [x2, x1];
  return `M${x1},${y1}C${middle[0]},${y1} ${middle[1]},${y2} ${x2},${y2}` +
    (arrow ? "l0,-3.5 l-6,3.5 l6,3.5 l0,-3.5" : "");
}

// Waves from left to right, the tokens of a wave below each other.
function drawGraph(panel, graph, parent, number) {
  const tallest = Math.max(...graph.waves.map((wave) => wave.length));
  const nodes = [];
  for (const [column, wave] of graph.waves.entries()) {
    for (const [i, position] of wave.entries()) {
      nodes[position] = { token: panel.output[position], column, row: (tallest - wave.length) / 2 + i,
        pass: graph.final_pass[position], class: wave.length > 1 ? "parallel" : "",
        chance: probability(graph.log_prob[position], 2) };
    }
  }
  const links = nodes.flatMap((_, position) => waitedFor(graph, position)
    .map((other) => [position, other]));
  const { svg, places } = drawNodes(parent, nodes, links, { what: "graph", panel: number,
    height: 38, apart: 46, top: 26, between: 44, least: 46, most: 150, around: 16, arrow: true,
    hot: (position) => links.filter((link) => link.includes(position)),
    isOpen: (made, pass) => made > pass,
    write: (group, node, text, { x, y, width }) => {
      draw(group, "text", { class: "word", x: x + width / 2, y: y + 16 }, text);
      draw(group, "text", { class: "probability", x: x + width / 2, y: y + 31 }, node.chance);
    } });
  for (const wave of graph.waves) {
    const { x, width } = places[wave[0]];
    draw(svg, "text", { class: "wave", x: x + width / 2, y: 14 }, String(graph.final_pass[wave[0]]));
  }
}

// The tokens of the wave before.
function waitedFor(graph, position) {
  return graph.waves[graph.waves.findIndex((wave) => wave.includes(position)) - 1] || [];
}

const KINDS = { before: "committed before", kept: "right, and final already", final: "final from here on",
  right: "right, not for good", wrong: "another token" };
const PARALLEL = "parallel"; // of cells: final, as others are from the same pass on

// What a pass said of a position; null where it said nothing.
function kindOf(panel, graph, pass, position, i) {
  if (i === undefined) return position < panel.passes[pass - 1].start ? "before" : null;
  if (pass === graph.final_pass[position]) return "final";
  if (pass > graph.final_pass[position]) return "kept";
  return graph.predictions[pass - 1].token[i] === panel.output[position] ? "right" : "wrong";
}

// Each kind of cell is one path: a matrix may have 40,000 cells.
function drawMatrix(panel, graph, parent, number) {
  const tokens = panel.output.map((written) => fit(word(written), 130));
  const longest = Math.max(...tokens.map((text) => measure.measureText(text).width));
  const top = Math.ceil(longest * 0.71) + 22;
  const rows = panel.passes.length;
  const right = CELL.left + panel.output.length * CELL.width;
  const svg = draw(parent, "svg", { class: "matrix", height: top + rows * CELL.height + 2,
    width: right + Math.ceil(longest * 0.71) + 6 });
  const shapes = Object.fromEntries([...Object.keys(KINDS), PARALLEL].map((kind) => [kind, []]));
  const waves = new Map(graph.waves.map((wave) => [graph.final_pass[wave[0]], wave.length]));
  const chances = [];
  const where = graph.predictions.map((row) => new Map(row.position.map((p, i) => [p, i])));
  for (let pass = 1; pass <= rows; pass += 1) {
    for (let position = 0; position < panel.output.length; position += 1) {
      const kind = kindOf(panel, graph, pass, position, where[pass - 1].get(position));
      const [x, y] = [CELL.left + position * CELL.width, top + (pass - 1) * CELL.height];
      const shape = `M${x + 1},${y + 1}h${CELL.width - 2}v${CELL.height - 2}h${2 - CELL.width}z`;
      if (kind) shapes[kind === "final" && waves.get(pass) > 1 ? PARALLEL : kind].push(shape);
      if (kind === "final") chances.push([x, y, pass, position]);
    }
  }
  for (const [kind, d] of Object.entries(shapes)) {
    if (d.length) draw(svg, "path", { class: `cells ${kind}`, d: d.join("") });
  }
  for (const [x, y, pass, position] of chances) {
    draw(svg, "text", { class: "final", x: x + CELL.width / 2, y: y + 14, "data-pass": pass,
      "data-position": position }, probability(graph.log_prob[position], 2));
  }
  for (const [position, text] of tokens.entries()) {
    const [x, y] = [CELL.left + (position + 0.4) * CELL.width, top - 7];
    draw(svg, "text", { class: "axis", transform: `translate(${x},${y}) rotate(-45)` }, text);
  }
  for (let pass = 1; pass <= rows; pass += 1) {
    draw(svg, "text", { class: "axis pass", x: CELL.left - 8, y: top + pass * CELL.height - 6 }, pass);
  }
  const later = draw(svg, "rect", { class: "later", x: CELL.left, width: right - CELL.left + 1 });
  addCursor(panel, graph, svg, number, where, top);
  svg.drawPass = (pass) => {
    later.setAttribute("y", top + Math.min(pass, rows) * CELL.height);
    later.setAttribute("height", Math.max(0, rows - pass) * CELL.height + 1);
  };
}

// One element that can be focused stands for all cells: arrow keys and the pointer move it.
function addCursor(panel, graph, svg, number, where, top) {
  const cursor = draw(svg, "rect", { class: "token cursor", tabindex: 0, role: "img",
    "data-what": "matrix", "data-panel": number, width: CELL.width, height: CELL.height, rx: 2 });
  cursor.kindAt = (pass, position) =>
    kindOf(panel, graph, pass, position, where[pass - 1].get(position));
  cursor.indexAt = (pass, position) => where[pass - 1].get(position);
  cursor.moveTo = (pass, position) => {
    if (!(pass >= 1 && pass <= panel.passes.length)) return;
    if (!(position >= 0 && position < panel.output.length)) return;
    cursor.dataset.pass = pass;
    cursor.dataset.position = position;
    cursor.setAttribute("x", CELL.left + position * CELL.width);
    cursor.setAttribute("y", top + (pass - 1) * CELL.height);
    cursor.setAttribute("aria-label", spoken(describe(cursor)));
  };
  cursor.moveTo(1, 0);
  svg.addEventListener("pointermove", (event) => {
    const corner = svg.getBoundingClientRect();
    cursor.moveTo(Math.floor((event.clientY - corner.top - top) / CELL.height) + 1,
      Math.floor((event.clientX - corner.left - CELL.left) / CELL.width));
    if (event.target === cursor || event.clientY - corner.top > top) showTip(cursor);
  });
  svg.addEventListener("pointerleave", hideTip);
}

// ---- a beam's tree ------------------------------------------------------------------------------

const FATES = ["best", "kept", "never"]; // classes, in the order of terms.fates

function drawTree(panel, body, number) {
  const { tree } = panel;
  if (!tree) {
    make(body, "p", { class: "faint" }, "No tree: only drafts of a beam search have one.");
    return;
  }
  const needed = tree.fate.filter((fate) => FATES[fate] !== "never").length;
  make(body, "h4", {}, `${plural(tree.token.length, "token")} read in ` +
    `${plural(panel.passes.length, "pass", "es")}, ${needed} of them needed`);
  const nodes = tree.token.map((token, i) => ({ token, column: tree.column[i], row: tree.row[i],
    pass: tree.pass[i], class: FATES[tree.fate[i]] }));
  const up = (i) => (tree.parent[i] < 0 ? [] : [[i, tree.parent[i]], ...up(tree.parent[i])]);
  const links = nodes.flatMap((_, i) => up(i).slice(0, 1));
  drawNodes(scroller(body, `tree of ${panel.decoding}`), nodes, links, { what: "tree",
    panel: number, height: 22, apart: 26, top: 2, between: 18, least: 0, most: 110, around: 30,
    hot: up, isOpen: unread,
    write: (group, node, text, { x, y, width }) => {
      draw(group, "text", { class: "word", x: x + (width - 14) / 2, y: y + 15 }, text);
      draw(group, "text", { class: "read", x: x + width - 11, y: y + 15 }, node.pass);
    } });
}

// After the slider's last pass the search may go on with other hypotheses: they are shown with it.
const unread = (read, pass) => read > pass && pass < lastPass();

// ---- after pass t -------------------------------------------------------------------------------

function showPass() {
  const { pass } = state;
  slider.value = pass;
  after.textContent = `after pass ${pass} of ${lastPass()}`;
  for (const section of panels.children) {
    const panel = sentence.panels[section.dataset.panel];
    const done = panel.origins.pass_number.filter((number) => number <= pass).length;
    section.querySelector("progress").value = done;
    const total = panel.output.length;
    const finished = pass >= active(panel) ? `all ${plural(total, "token")} written`
      : `${done} of ${plural(total, "token")} written`;
    section.querySelector(".done").textContent = finished;
    for (const token of section.querySelectorAll(".box, .node")) {
      const inTree = token.dataset.what === "tree";
      const tokens = inTree ? panel.tree.token : panel.output;
      const read = Number(token.dataset.pass);
      const open = inTree ? unread(read, pass) : read > pass;
      token.classList.toggle("open", open);
      token.setAttribute("aria-label", open ? terms.meanings.open
        : `${word(tokens[token.dataset.position])}, pass ${read}`);
    }
    for (const row of section.querySelectorAll(".row")) row.hidden = Number(row.dataset.pass) > pass;
    for (const svg of section.querySelectorAll("svg.graph")) svg.drawEdges(pass);
    for (const svg of section.querySelectorAll("svg.matrix")) svg.drawPass(pass);
    keepReachable(section.querySelector(".body"));
  }
  // What the tip says may hold no longer.
  if (pointed && isShown(pointed)) showTip(pointed);
  else hideTip();
}

const isShown = (element) => !element.closest(".row[hidden]");

// The Tab key needs one token that can be seen; the arrow keys lead to the others.
function keepReachable(body) {
  const stops = [...body.querySelectorAll('.token[tabindex="0"]:not(.cursor)')];
  if (stops.some(isShown)) return;
  const first = body.querySelector(".token"); // rows are hidden from the last one on
  if (!first) return;
  for (const stop of stops) stop.setAttribute("tabindex", "-1");
  first.setAttribute("tabindex", "0");
}

function stop() {
  clearInterval(timer);
  timer = null;
  play.textContent = "▶ Play";
}

function start() {
  if (state.pass >= lastPass()) state.pass = 0;
  play.textContent = "❚❚ Pause";
  showPass();
  timer = setInterval(() => {
    state.pass += 1;
    showPass();
    if (state.pass >= lastPass()) stop();
  }, SECONDS_PER_PASS * 1000);
}

// ---- the legend: of what is on the page ---------------------------------------------------------

function showLegend(view) {
  legend.replaceChildren();
  if (view === "output") legendOfOutput();
  if (view === "passes") legendOfPasses();
  if (view === "steps") {
    entry(null, "", "The tokens that each step wrote. A step of blockwise decoding is a block, of " +
      "every other method a pass.");
  }
  if (view === "dependencies") legendOfGraph();
  if (view === "tree") legendOfTree();
}

function entry(classes, sample, meaning) {
  const item = make(legend, "span", { class: "entry" });
  if (classes !== null) {
    const shown = make(item, "span", { class: classes });
    make(shown, "span", { class: "word" }, sample);
  }
  make(item, "span", { class: "meaning" }, meaning);
}

function legendOfOutput() {
  if (state.colour === "pass") {
    for (const pass of new Set([1, Math.ceil(lastPass() / 2), lastPass()])) {
      entry("sample box", String(pass), `written by pass ${pass}`);
      paint(legend.lastChild.firstChild, pass);
    }
    return;
  }
  for (const [name, meaning] of Object.entries(terms.origins)) {
    if (panels.querySelector(`.box.${name}`)) entry(`sample box ${name}`, marked(name, "3"), meaning);
  }
  const ways = new Set(sentence.panels.flatMap(({ origins }) =>
    origins.token.map((_, i) => wayOf(origins, i))).filter(Boolean));
  for (const way of [...ways].sort()) {
    entry(`sample box written way${wayNumber(way)}`, `3 · ${way}`, `written by direction ${way}`);
  }
  entry(null, "", "The small number is the pass that wrote the token.");
}

function legendOfPasses() {
  entry(null, "", "D: the drafter's tokens in a pass. V: the verifier's.");
  for (const [name, meaning] of Object.entries(terms.meanings)) {
    const there = panels.querySelector(`.token[data-state="${name}"]`);
    if (there) entry(`sample token ${name}`, name === "open" ? "" : name, meaning);
  }
}

function legendOfGraph() {
  const graphs = sentence.panels.filter((panel) => panel.graph).map((panel) => panel.graph);
  if (!graphs.length) return;
  entry(null, "", "A number above a column: the pass from which on its tokens are final. Arrows " +
    "lead to the tokens that became final just before. Below, passes go down, positions to the " +
    "right; a cell has the probability of the token that became final in it.");
  if (graphs.some((graph) => graph.waves.some((wave) => wave.length > 1))) {
    entry("sample swatch parallel", "", "final in the same pass as others: decoded in parallel");
  }
  for (const [kind, meaning] of Object.entries(KINDS)) {
    if (panels.querySelector(`.cells.${kind}`)) entry(`sample swatch ${kind}`, "", meaning);
  }
}

function legendOfTree() {
  entry(null, "", "The hypotheses of the search, and what was drafted for them. The small number " +
    "is the pass that read the token.");
  for (const [i, meaning] of terms.fates.entries()) entry(`sample swatch ${FATES[i]}`, "", meaning);
}

// ---- what is known of a token -------------------------------------------------------------------

function probability(value, digits) {
  if (value === null || value === undefined) return "";
  return value === false ? "0" : Math.exp(value).toFixed(digits);
}

function chance(value) {
  if (value === null || value === undefined) return null;
  if (value === false) return "not allowed here";
  const share = Math.exp(value);
  return `${share >= 0.0001 ? share.toFixed(4) : share.toExponential(2)} (log ${value.toFixed(4)})`;
}

function describe(element) {
  const { what } = element.dataset;
  const panel = sentence.panels[element.dataset.panel];
  const position = Number(element.dataset.position);
  const pass = Number(element.dataset.pass);
  if (what === "origin") return ofOrigin(panel, position);
  if (what === "graph") return ofGraph(panel, position);
  if (what === "tree") return ofTree(panel.tree, position);
  if (what === "matrix") return ofMatrix(element, panel, position, pass);
  if (what === "open") return { token: "·", position, by: terms.meanings.open };
  const cells = panel.passes[pass - 1][what];
  const before = what === "draft" ? "draft: " : "";
  return ofToken(cells, cells.position.indexOf(position), position, pass, terms.meanings, before);
}

function ofOrigin({ origins }, position) {
  const number = origins.pass_number[position];
  if (number > state.pass && root.dataset.view === "output") {
    return { token: "·", position, by: terms.meanings.open };
  }
  return ofToken(origins, position, position, number, terms.origins);
}

function ofToken(columns, i, position, pass, meanings, before = "") {
  const way = wayOf(columns, i);
  const meaning = way ? `written by direction ${way}` : meanings[stateName(columns.state[i])];
  return { token: word(columns.token[i]), position, pass, by: before + meaning, ...facts(columns, i) };
}

function facts(columns, i) {
  const other = at(columns, "runner_up", i);
  const sure = at(columns, "confidence", i);
  return {
    probability: chance(at(columns, "log_prob", i)),
    rank: at(columns, "rank", i),
    confidence: sure === null ? null : sure.toFixed(4),
    runner_up: other === null ? null : word(other),
    runner_up_probability: other === null ? null : chance(at(columns, "runner_up_log_prob", i)),
  };
}

function ofGraph(panel, position) {
  const { graph } = panel;
  const number = graph.final_pass[position];
  if (number > state.pass) return { token: "·", position, by: "not final yet" };
  const waited = waitedFor(graph, position);
  return {
    token: word(panel.output[position]),
    position,
    pass: number,
    by: `final from pass ${number} on`,
    ...facts(graph, position),
    waited: waited.map((other) => word(panel.output[other])).join(" ") || null,
  };
}

function ofTree(tree, leaf) {
  const first = tree.column[leaf] === 0; // the decoder's first input
  if (unread(tree.pass[leaf], state.pass)) return { token: "·", by: "not read yet" };
  return {
    token: word(tree.token[leaf]),
    position: first ? null : tree.column[leaf] - 1,
    pass: tree.pass[leaf],
    by: first ? "the decoder's first input" : terms.fates[tree.fate[leaf]],
  };
}

function ofMatrix(cursor, panel, position, pass) {
  const kind = cursor.kindAt(pass, position);
  const i = cursor.indexAt(pass, position);
  const predicted = panel.graph.predictions[pass - 1];
  if (i === undefined) {
    const token = kind ? word(panel.output[position]) : "·";
    return { token, position, pass, by: kind ? KINDS[kind] : "not predicted in this pass" };
  }
  return { token: word(predicted.token[i]), position, pass, by: KINDS[kind], ...facts(predicted, i) };
}

const LABELS = { position: "position", pass: "pass", by: "how", probability: "probability",
  rank: "tokens that score higher", confidence: "drafter's probability", runner_up: "runner-up", runner_up_probability: "its probability",
  waited: "waited for" };

// All of it in one line, for what has no description by the tip.
function spoken(facts) {
  const known = Object.entries(LABELS).filter(([key]) => facts[key] !== null && facts[key] !== undefined);
  return [facts.token, ...known.map(([key, label]) => `${label} ${facts[key]}`)].join(", ");
}

let pointed = null; // what the tip belongs to

function showTip(element) {
  const facts = describe(element);
  if (pointed && pointed !== element) pointed.removeAttribute("aria-describedby");
  pointed = element;
  // the cursor's own name says it all, and is what is read when it moves
  if (!element.moveTo) element.setAttribute("aria-describedby", "tip");
  tip.replaceChildren();
  make(tip, "strong", { "data-fact": "token", dir: "auto" }, facts.token);
  const rows = make(tip, "dl");
  for (const [key, label] of Object.entries(LABELS)) {
    if (facts[key] === null || facts[key] === undefined) continue;
    make(rows, "dt", {}, label);
    make(rows, "dd", { "data-fact": key, dir: "auto" }, facts[key]);
  }
  tip.hidden = false;
  const box = element.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = tip;
  const below = box.bottom + 6 + height <= window.innerHeight || box.top < height + 6;
  tip.style.left = `${Math.max(4, Math.min(box.left, window.innerWidth - width - 8))}px`;
  tip.style.top = `${below ? box.bottom + 6 : box.top - height - 6}px`;
  const svg = element.closest("svg.graph");
  if (svg) svg.drawHot(Number(element.dataset.position));
}

function hideTip() {
  tip.hidden = true;
  if (!pointed) return;
  pointed.removeAttribute("aria-describedby");
  const svg = pointed.closest("svg.graph");
  if (svg) svg.drawHot(null);
  pointed = null;
}

const tokenOf = (target) => (target instanceof Element ? target.closest(".token[data-what]") : null);

// ---- what the reader does -----------------------------------------------------------------------

panels.addEventListener("pointerover", (event) => {
  const pointedAt = tokenOf(event.target);
  if (pointedAt) showTip(pointedAt);
  else if (!(event.target instanceof Element && event.target.closest("svg.matrix"))) hideTip();
});
panels.addEventListener("pointerleave", hideTip);
panels.addEventListener("focusin", (event) => {
  const focused = tokenOf(event.target);
  if (!focused) return;
  const body = focused.closest(".body");
  for (const other of body.querySelectorAll('.token[tabindex="0"]:not(.cursor)')) {
    if (other !== focused && !focused.classList.contains("cursor")) other.setAttribute("tabindex", "-1");
  }
  focused.setAttribute("tabindex", "0");
  showTip(focused);
});
panels.addEventListener("focusout", hideTip);
window.addEventListener("scroll", () => {
  if (pointed && pointed !== document.activeElement) hideTip();
}, { passive: true });

const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (event.key === "Escape") hideTip();
  const step = ARROWS[event.key];
  if (!step) return;
  const focused = tokenOf(document.activeElement);
  if (focused) {
    event.preventDefault();
    if (focused.moveTo) {
      focused.moveTo(Number(focused.dataset.pass) + step[0], Number(focused.dataset.position) + step[1]);
      focused.scrollIntoView({ block: "nearest", inline: "nearest" });
      showTip(focused);
    } else move(focused, ...step);
  } else if (step[1] && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) {
    event.preventDefault();
    choose(state.index + step[1]);
  }
});

// Left and right along the tokens; up and down to the nearest token of another line.
function move(from, down, along) {
  const all = [...from.closest(".body").querySelectorAll(".token[data-what]:not(.cursor)")]
    .filter((token) => token.getClientRects().length);
  if (along && !from.closest("svg")) {
    const rtl = from.closest(".line").dir === "rtl";
    const same = all.filter((token) => token.dataset.what === from.dataset.what ||
      !["draft", "verifier"].includes(token.dataset.what) ||
      !["draft", "verifier"].includes(from.dataset.what));
    const next = same[same.indexOf(from) + (rtl ? -along : along)];
    if (next) next.focus();
    return;
  }
  const middle = (token) => {
    const box = token.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const [x, y] = middle(from);
  let best = null;
  for (const token of all) {
    const [left, top] = middle(token);
    const [ahead, aside] = down ? [(top - y) * down, left - x] : [(left - x) * along, top - y];
    if (ahead < 4) continue;
    const far = ahead * 3 + Math.abs(aside);
    if (!best || far < best.far) best = { token, far };
  }
  if (best) best.token.focus();
}

back.addEventListener("click", () => choose(state.index - 1));
onward.addEventListener("click", () => choose(state.index + 1));
list.addEventListener("change", () => choose(Number(list.value)));
window.addEventListener("hashchange", () => {
  const index = fromAddress();
  if (slug(names[state.index]) !== slug(names[index])) show(index);
});
views.addEventListener("change", (event) => {
  state.view = event.target.value;
  showView();
});
colours.addEventListener("change", (event) => {
  state.colour = event.target.value;
  showView();
});
slider.addEventListener("input", () => {
  stop();
  state.pass = Number(slider.value);
  showPass();
});
play.addEventListener("click", () => (timer === null ? start() : stop()));

if (blocks.length) show(fromAddress());
else {
  root.replaceChildren();
  make(root, "p", {}, "There is no sentence on this page.");
}
