// Passes of a decoder: a row each, in which drafted tokens are kept or struck out.

export function make(parent, tag, attributes = {}, text = "") {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

const share = (log) => (log === null || log === undefined ? "0 (not allowed)" : Math.exp(log).toFixed(4));
const STATES = { accepted: "accepted", given: "accepted from the last translation",
  rejected: "rejected", own: "written by the model" };
const BEFORE = 5; // earlier tokens that a row repeats

// What is known of a token of a pass; i: its place in the pass.
function describe(pass, i, state) {
  const chosen = pass.verifier[i];
  const said = [];
  if (state === "rejected") {
    said.push(`the drafter wanted ${pass.draft[i]}`);
    if (i < pass.draft_log_probs.length) {
      said.push(`for the model its probability is ${share(pass.draft_log_probs[i])}`);
      said.push(`${pass.draft_ranks[i]} tokens are likelier`);
    }
    if (i === pass.num_accepted) said.push(`it chose ${chosen}: ${share(pass.log_probs[i])}`);
    else said.push("it stands behind a token that was rejected");
  } else {
    said.push(`probability ${share(pass.log_probs[i])}`);
    if (pass.runner_up[i]) {
      said.push(`next best ${pass.runner_up[i]}: ${share(pass.runner_up_log_probs[i])}`);
    }
    if (state === "own") {
      said.push(i < pass.draft.length ? `the drafter wanted ${pass.draft[i]}` : "nothing was drafted here");
    } else said.push("the drafter wanted it, too");
  }
  if (pass.draft_confidences && i < pass.draft.length) {
    said.push(`the drafter's own probability ${pass.draft_confidences[i].toFixed(4)}`);
  }
  return `${state === "rejected" ? pass.draft[i] : chosen}, ${STATES[state]}: ${said.join("; ")}.`;
}

export class Passes {
  constructor(list, told) {
    this.list = list;
    this.told = told;
    list.addEventListener("click", (event) => this.tell(event.target.closest("button")));
    list.addEventListener("focusin", (event) => this.reach(event.target.closest("button")));
    list.addEventListener("keydown", (event) => this.move(event));
    this.clear();
  }

  clear() {
    this.list.replaceChildren();
    this.told.textContent = "";
    this.sentence = 0;
    this.written = [];
  }

  // Draw a pass as it is drafted; returns the function that shows what became of it.
  draw(sentence, pass) {
    if (sentence !== this.sentence) {
      this.sentence = sentence;
      this.written = [];
    }
    const row = make(this.list, "li");
    make(row, "span", { class: "number" }, this.list.children.length);
    const line = make(row, "span", { class: "line", dir: "auto" });
    const before = this.written.slice(-BEFORE);
    if (before.length) {
      const more = this.written.length > before.length ? "… " : "";
      make(line, "span", { class: "before" }, `${more}${before.join(" ")} `);
    }
    const add = (text) => make(line, "button", { type: "button", class: "token drafted",
      tabindex: -1, dir: "auto" }, text);
    const drafted = pass.draft.map(add);
    this.list.scrollTop = this.list.scrollHeight;
    return () => {
      const kept = pass.given ? "given" : "accepted";
      for (const [i, token] of drafted.entries()) {
        this.settle(token, pass, i, i < pass.num_accepted ? kept : "rejected");
      }
      const own = pass.num_committed > pass.num_accepted;
      if (own) {
        const token = add(pass.verifier[pass.num_accepted]);
        drafted[pass.num_accepted - 1]?.after(token);
        if (!pass.num_accepted && drafted.length) drafted[0].before(token);
        this.settle(token, pass, pass.num_accepted, "own");
      }
      this.written.push(...pass.verifier.slice(0, pass.num_committed));
      if (!this.list.querySelector('[tabindex="0"]')) this.reach(line.querySelector("button"));
    };
  }

  settle(token, pass, i, state) {
    token.className = `token ${state}`;
    token.setAttribute("aria-label", `${token.textContent}, ${STATES[state]}`);
    token.setAttribute("aria-pressed", "false");
    token.said = describe(pass, i, state);
  }

  tell(token) {
    if (!token?.said) return;
    for (const other of this.list.querySelectorAll('[aria-pressed="true"]')) {
      other.setAttribute("aria-pressed", "false");
    }
    token.setAttribute("aria-pressed", "true");
    this.told.textContent = token.said;
  }

  // The Tab key needs one token; arrow keys lead to the others.
  reach(token) {
    if (!token) return;
    for (const other of this.list.querySelectorAll('[tabindex="0"]')) other.setAttribute("tabindex", "-1");
    token.setAttribute("tabindex", "0");
  }

  move(event) {
    const all = [...this.list.querySelectorAll("button")];
    const rows = [...this.list.children];
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const row = rows.indexOf(all[at].closest("li"));
    const first = (i) => rows[i]?.querySelector("button");
    const next = { ArrowLeft: all[at - 1], ArrowRight: all[at + 1], ArrowUp: first(row - 1),
      ArrowDown: first(row + 1), Home: all[0], End: all[all.length - 1] }[event.key];
    if (!next) return;
    event.preventDefault();
    next.focus();
  }
}
