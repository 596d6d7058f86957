// The page of every measured problem: tabs, filters, the overview and the table, of one list.
// `docs/suite_page.py` writes the records, and says what their fields are.

const data = JSON.parse(document.getElementById("data").textContent);
const records = data.rows.map((row, index) => {
  const r = Object.fromEntries(data.keys.map((key, i) => [key, row[i]]));
  r.index = index;
  r.command = data.command[r.command];
  r.origin = data.origin[r.origin];
  r.size = `${r.batch > 1 ? `${r.batch} x ` : ""}${r.M} x ${r.N} x ${r.K}`;
  r.side = !r.x ? "untimed" : r.tie ? "tied" : r.x[1] > 1 ? "won" : "lost";
  r.peerside = !r.xpeer ? "untimed" : r.peertie ? "tied" : r.xpeer[1] > 1 ? "won" : "lost";
  r.mj = energy(r.watts, r.us && r.us[1]);
  r.intensity = r.gbs ? (1000 * r.tflops) / r.gbs : null;
  return r;
});
const TITLES = { suite: "Suite", serving: "Served layers", random: "Random", linear: "Linear layers" };
const SIDES = { won: "won", tied: "tied", lost: "lost", untimed: "not timed" };
const AXES = {
  "time, µs": (r) => r.us && r.us[1],
  "M": (r) => r.M, "N": (r) => r.N, "K": (r) => r.K,
  "operations per byte": (r) => r.intensity,
  "watts": (r) => r.watts,
};
// Head, text of a cell, value to sort by (words: none), whether the largest comes first.
const COLUMNS = [
  ["id", (r) => r.id],
  ["name", (r) => r.name + (r.ending ? `, ${r.ending}` : "")],
  ["M", (r) => (r.batch > 1 ? `${r.batch} x ${r.M}` : r.M), (r) => r.M, true],
  ["N", (r) => r.N, (r) => r.N, true],
  ["K", (r) => r.K, (r) => r.K, true],
  ["layout", (r) => r.layout],
  ["type", (r) => r.type],
  ["kernel", (r) => r.kernel ?? r.reason.split(":")[0]],
  ["µs", (r) => r.us && digits(r.us[1]), (r) => r.us && r.us[1]],
  ["TFLOP/s", (r) => r.tflops && digits(r.tflops), (r) => r.tflops, true],
  ["x cuBLAS", (r) => spread(r.x), (r) => r.x && r.x[1], true, (r) => r.side],
  ["x best peer", (r) => spread(r.xpeer), (r) => r.xpeer && r.xpeer[1], true, (r) => r.peerside],
  ["% of roof", (r) => r.roof && r.roof.toFixed(0), (r) => r.roof, true],
  ["W", (r) => r.watts && r.watts.toFixed(0), (r) => r.watts, true],
  ["mJ", (r) => r.mj && digits(r.mj), (r) => r.mj, true],
  ["class", (r) => r.class],
];

function energy(watts, us) {
  return watts && us ? (watts * us) / 1000 : null;
}

/** At least three significant digits. */
function digits(x) {
  return x.toFixed(x < 1 ? 3 : x < 10 ? 2 : x < 100 ? 1 : 0);
}

function spread(q) {
  return q && [q[1].toFixed(3), ` (${q[0].toFixed(3)}–${q[2].toFixed(3)})`];
}

function make(tag, given = {}, ...inner) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(given)) {
    if (key.startsWith("data-") || key.startsWith("aria-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...inner.filter((one) => one !== null && one !== undefined));
  return made;
}

const at = (id) => document.getElementById(id);
const state = { experiment: "suite", kept: null };

function matches(r, words) {
  if (state.experiment && r.experiment !== state.experiment) return false;
  for (const name of ["class", "type", "kernel", "side"]) {
    if (at(name).value && String(r[name]) !== at(name).value) return false;
  }
  const said = `${r.id} ${r.name} ${r.class} ${r.size} ${r.layout} ${r.type} ${r.kernel} ${r.ending ?? ""}`;
  return words.every((word) => said.toLowerCase().includes(word));
}

function line(r) {
  const cells = COLUMNS.map(([head, text, value, , side]) => {
    const cell = make("td", { className: value ? "figure" : head === "name" ? "name" : "" });
    const said = text(r);
    if (value) cell.dataset.value = value(r) ?? "";
    if (Array.isArray(said)) cell.append(make("span", { className: side(r) }, said[0]), make("small", {}, said[1]));
    else cell.append(said ?? "");
    return cell;
  });
  return make("tr", { tabIndex: 0, "data-index": r.index }, ...cells);
}

function heads() {
  const row = document.querySelector("#problems thead tr");
  for (const [head, , value, falling] of COLUMNS) {
    row.append(make("th", { className: value ? "figure" : "", "data-first": falling ? "descending" : "ascending" }, head));
  }
  sortable(at("problems"));
}

function show() {
  const words = at("text").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = new Set(records.filter((r) => matches(r, words)).map((r) => r.index));
  for (const row of document.querySelectorAll("#problems tbody tr")) {
    row.hidden = !shown.has(Number(row.dataset.index));
  }
  const found = records.filter((r) => shown.has(r.index));
  summarise(found);
  overview(found.filter((r) => r.x));
  drop();
}

function summarise(found) {
  const timed = found.filter((r) => r.x);
  const count = (side) => found.filter((r) => r.side === side).length;
  const mean = Math.exp(timed.reduce((sum, r) => sum + Math.log(r.x[1]), 0) / timed.length);
  const parts = [`${found.length} problems: `];
  for (const side of ["won", "tied", "lost"]) {
    parts.push(make("b", { className: side }, `${count(side)} ${SIDES[side]}`), side === "lost" ? "" : ", ");
  }
  if (count("untimed")) parts.push(`, ${count("untimed")} not timed`);
  if (timed.length) parts.push(`. Geometric mean ${mean.toFixed(3)}x cuBLAS.`);
  at("summary").replaceChildren(...parts);
}

/** Dots: the ratio to cuBLAS, on a log scale, over what the axis asks for. */
function overview(found) {
  const svg = at("overview");
  const [width, height, left, right, top, bottom] = [svg.clientWidth || 800, svg.clientHeight || 260, 44, 24, 10, 26];
  const over = AXES[at("axis").value];
  const dots = found.filter((r) => over(r)).map((r) => [over(r), r.x[1], r]);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  if (!dots.length) return svg.replaceChildren();
  const span = (values, least) => {
    const [low, high] = [Math.log2(Math.min(...values)), Math.log2(Math.max(...values))];
    const pad = Math.max(least, 0.05 * (high - low));
    return [low - pad, high + pad];
  };
  const [x0, x1] = span(dots.map(([x]) => x), 0.2);
  const [y0, y1] = span([0.95, 1.05, ...dots.map(([, y]) => y)], 0.05);
  const X = (x) => left + ((Math.log2(x) - x0) / (x1 - x0)) * (width - left - right);
  const Y = (y) => height - bottom - ((Math.log2(y) - y0) / (y1 - y0)) * (height - top - bottom);
  const parts = [];
  for (const y of [0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4, 6, 8, 12, 16]) {
    if (Math.log2(y) < y0 || Math.log2(y) > y1) continue;
    const lines = drawn("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: y === 1 ? "one" : "" });
    const last = parts.at(-1);
    const room = !last || last.y - Y(y) > 13 || y === 1;
    if (room && y === 1 && last && last.y - Y(y) <= 13) parts.pop();
    if (room) parts.push({ y: Y(y), nodes: [lines, drawn("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end" }, `${y}x`)] });
  }
  const ticks = [];
  const step = Math.max(1, Math.ceil((x1 - x0) / (width / 70)));
  for (let power = Math.ceil(x0); power <= x1; power += step) {
    const x = 2 ** power;
    ticks.push(drawn("text", { x: X(x), y: height - 8, "text-anchor": "middle" }, x < 1 ? x : x.toLocaleString("en")));
  }
  const circles = dots.map(([x, y, r]) => drawn("circle", { cx: X(x), cy: Y(y), r: dots.length > 300 ? 3 : 4.5, class: r.side, "data-index": r.index }));
  svg.replaceChildren(...parts.flatMap((part) => part.nodes), ...ticks, ...circles);
}

function drawn(tag, given, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** What is known of one problem beside the pointer, or, when a line is clicked, until the next. */
function detail(r, x, y) {
  const q = (given, unit) => given && `${digits(given[1])} ${unit} (p20–p80 ${digits(given[0])}–${digits(given[2])})`;
  const lines = [
    ["of", TITLES[r.experiment]],
    ["problem", `${r.size}, ${r.layout}, ${r.type}${r.ending ? `, ${r.ending}` : ""}`],
    ["result", r.x ? `${r.x[1].toFixed(3)}x cuBLAS (${r.x[0].toFixed(3)}–${r.x[2].toFixed(3)}), ${SIDES[r.side]}` : r.reason],
    ["best peer", r.xpeer && `${r.xpeer[1].toFixed(3)}x ${r.peer} (${r.xpeer[0].toFixed(3)}–${r.xpeer[2].toFixed(3)}), ${SIDES[r.peerside]}`],
    ["time", q(r.us, "µs")],
    ["cuBLAS", r.cublas && `${digits(r.cublas)} µs`],
    ["speed", r.us && `${digits(r.tflops)} TFLOP/s, ${digits(r.gbs)} GB/s`],
    ["energy", r.mj && `${digits(r.mj)} mJ at ${r.watts.toFixed(0)} W and ${r.mhz.toFixed(0)} MHz`
      + (r.cublaswatts ? `; cuBLAS ${digits(energy(r.cublaswatts, r.cublas))} mJ at ${r.cublaswatts.toFixed(0)} W` : "")],
    ["kernel", r.kernel && `${r.kernel}: ${r.config}`],
    ["error", r.worst && `${r.worst.toFixed(2)} of its bound at most`],
    ["measured", r.us && `${r.rounds} rounds, ${r.command}`],
    ["on", r.origin],
  ];
  const list = make("dl");
  for (const [name, text] of lines) if (text) list.append(make("dt", {}, name), make("dd", {}, text));
  const box = at("details");
  box.replaceChildren(make("h2", {}, `${r.id} ${r.name}`), list);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(x + 16, innerWidth - width - 8))}px`;
  box.style.top = `${y + height + 24 > innerHeight ? Math.max(8, y - height - 12) : y + 16}px`;
  mark(r.index);
}

function mark(index) {
  for (const old of document.querySelectorAll(".at")) old.classList.remove("at");
  for (const now of document.querySelectorAll(`[data-index="${index}"]`)) now.classList.add("at");
}

function drop() {
  at("details").hidden = true;
  state.kept = null;
  mark(-1);
}

const pointed = (event) => records[event.target.closest?.("[data-index]")?.dataset.index];
document.addEventListener("pointermove", (event) => {
  if (event.pointerType === "touch" || state.kept !== null) return;
  const r = pointed(event);
  if (r) detail(r, event.clientX, event.clientY);
  else if (!at("details").hidden) drop();
});
document.addEventListener("click", (event) => {
  const r = pointed(event);
  if (!r || state.kept === r.index) return drop();
  detail(r, event.clientX, event.clientY);
  state.kept = r.index;
  if (event.target.tagName === "circle") {
    document.querySelector(`tr[data-index="${r.index}"]`).scrollIntoView({ block: "nearest" });
  }
});
document.addEventListener("keydown", (event) => {
  const r = event.key === "Enter" && event.target.tagName === "TR" && pointed(event);
  const box = r && event.target.getBoundingClientRect();
  if (event.key === "Escape") drop();
  else if (r) { detail(r, box.left, box.bottom); state.kept = r.index; }
});

/** A select of the values that the records of this tab have. */
function options(name, title, titled = (value) => value) {
  const known = records.filter((r) => !state.experiment || r.experiment === state.experiment);
  const values = [...new Set(known.map((r) => r[name]))].filter(Boolean);
  const kept = at(name).value;
  at(name).replaceChildren(new Option(title, ""), ...values.map((value) => new Option(titled(value), value)));
  if (values.includes(kept)) at(name).value = kept;
}

function tab(experiment) {
  state.experiment = experiment;
  for (const button of at("tabs").children) {
    button.setAttribute("aria-pressed", String(button.value === experiment));
  }
  options("class", "every class");
  options("type", "every type");
  options("kernel", "every kernel");
  options("side", "won, tied and lost", (side) => SIDES[side]);
  show();
}

function start() {
  for (const experiment of [...Object.keys(TITLES), ""]) {
    const own = records.filter((r) => !experiment || r.experiment === experiment);
    if (!own.length) continue;
    const button = make("button", { type: "button", value: experiment }, `${TITLES[experiment] ?? "All"} (${own.length})`);
    button.addEventListener("click", () => tab(experiment));
    at("tabs").append(button);
  }
  for (const axis of Object.keys(AXES)) at("axis").append(new Option(axis));
  heads();
  document.querySelector("#problems tbody").append(...records.map(line));
  at("filters").addEventListener("input", show);
  at("filters").addEventListener("reset", () => setTimeout(show));
  at("filters").addEventListener("submit", (event) => event.preventDefault());
  at("axis").addEventListener("input", show);
  addEventListener("resize", show);
  tab("suite");
}
start();
