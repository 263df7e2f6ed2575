// Requests the run's numbers, gives each trial a colour and dashes, and shows all. Texts are never set as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const COLOURS = 7;
const view = {
  run: null, trial: null, order: null, round: null, sort: "name", descending: false, find: "", page: 0,
  log: null, logEnd: null, trials: {}, curves: new Map(), drawn: {}, visible: new Set(), state: null, failures: 0,
};

async function get(name, query = {}) {
  const address = new URL(`data/${name}`, document.baseURI);
  for (const [key, value] of Object.entries({run: view.run, ...query})) {
    if (value !== null && value !== undefined && value !== "") address.searchParams.set(key, value);
  }
  const answer = await fetch(address, {cache: "no-store", signal: AbortSignal.timeout(15000)});
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}
const percent = (value, digits = 1) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`);
const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en"));
const loss = (value) => (value === null || value === undefined ? "–" : Math.abs(value) >= 0.01 && Math.abs(value) < 1000 ? value.toFixed(3) : short(value));
const several = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

// --- the trials ------------------------------------------------------------------------------------------
const names = () => Object.keys(view.trials);
const labels = () => [...new Set(names().map((name) => view.trials[name].label || name))];
const labelOf = (name) => view.trials[name].label || name;
const colourOf = (label) => labels().indexOf(label) % COLOURS;
const dashOf = (label) => Math.floor(labels().indexOf(label) / COLOURS) % 4;
const hasSeeds = () => labels().length < names().length;
function titleOf(name) {
  const trial = view.trials[name];
  return hasSeeds() ? `${labelOf(name)}, seed ${trial.seed}` : labelOf(name);
}
function current() { return view.trials[view.trial]; }

function tiles() {
  const all = Object.values(view.trials), best = (key, choose) => {
    const known = all.filter((each) => each[key] !== null && each[key] !== undefined);
    return known.length ? known.reduce((a, b) => (choose(a[key], b[key]) === b[key] ? b : a)) : null;
  };
  const accuracy = best("accuracy", Math.max), least = best("loss", Math.min), one = current();
  const lead = all.length ? all.reduce((a, b) => (b.round > a.round ? b : a)) : null;
  const many = all.length > 1, of = (trial) => (many && trial ? titleOf(names().find((name) => view.trials[name] === trial)) : "");
  const {online, nodes} = view.state;
  const rows = [
    ["Round", lead && lead.round >= 0 ? count(lead.round) : "–", lead ? ` / ${count(lead.rounds)}` : "", many ? `of ${several(all.length, "trial")}` : ""],
    ["Test accuracy", accuracy ? (100 * accuracy.accuracy).toFixed(1) : "–", accuracy ? " %" : "", of(accuracy)],
    ["Test loss", least ? loss(least.loss) : "–", "", of(least)],
    nodes !== null ? ["Devices online", count(online), ` / ${count(nodes)}`, one && one.quarantined ? `${one.quarantined} quarantined` : ""]
      : ["Selectable clients", one ? count(one.available) : "–", one ? ` / ${count(one.clients)}` : "", one && one.quarantined ? `${one.quarantined} quarantined` : "in the last round"],
    ["Have trained", one ? count(one.drawn) : "–", one ? ` / ${count(one.clients)}` : "", one && many ? of(one) : one ? `${several(one.selected ?? 0, "client")} in the last round` : ""],
    ["Time of a round", one && one.seconds ? span(one.seconds).split(" ")[0] : "–", one && one.seconds ? ` ${span(one.seconds).split(" ")[1]}` : "", one ? `${several(one.failed, "failure")} so far` : ""],
  ];
  $("tiles").replaceChildren(...rows.map(([name, value, rest, more]) => el("div", {class: "tile"}, el("span", {}, name), el("b", {}, value, el("small", {}, rest)), el("em", {}, more || "\u00a0"))));
}

function header() {
  const {state} = view, all = Object.values(view.trials), states = all.map((each) => each.state);
  const overall = !all.length ? "waiting" : ["running", "failed", "stopped", "interrupted", "waiting", "finished"].find((each) => states.includes(each)) || "waiting";
  $("state").textContent = state.complete ? overall : "reading";
  $("state").className = `pill ${overall}`;
  $("name").textContent = state.run || state.name;
  document.title = `${state.run || state.name} · Cohort`;
  const one = current();
  $("about").textContent = one ? [several(one.clients, "client"), one.per_round ? `${one.per_round} per round` : "", one.task, hasSeeds() ? `${new Set(all.map((each) => each.seed)).size} seeds` : one.seed !== undefined && one.seed !== null ? `seed ${one.seed}` : ""].filter(Boolean).join(" · ") : "waiting for the first round";
  const done = all.reduce((sum, each) => sum + Math.max(0, each.round), 0), planned = all.reduce((sum, each) => sum + (each.rounds || 0), 0);
  $("bar").hidden = !planned;
  $("bar").firstElementChild.style.width = `${planned ? Math.min(100, (100 * done) / planned) : 0}%`;
  options($("runs"), state.runs, state.run);
  $("runs").hidden = state.runs.length < 2;
  const troubled = all.filter((each) => each.reason && each.state === "failed");
  $("notice").hidden = !troubled.length;
  $("notice").textContent = troubled.map((each) => `${each.label}: ${each.reason}`).join("\n");
}

function options(select, values, chosen) {
  if (JSON.stringify([...select.options].map((each) => each.value)) !== JSON.stringify(values)) {
    select.replaceChildren(...values.map((value) => el("option", {value}, value)));
  }
  select.value = chosen ?? "";
}

function whichTrial() {
  $("which").hidden = names().length < 2;
  if (names().length > 12) {
    let select = $("which").querySelector("select");
    if (!select) { select = el("select", {"aria-label": "Trial", onchange: (event) => choose(event.target.value)}); $("which").replaceChildren(select); }
    if (select.options.length !== names().length) select.replaceChildren(...names().map((name) => el("option", {value: name}, titleOf(name))));
    select.value = view.trial;
    return;
  }
  $("which").replaceChildren(...names().map((name) => el("button", {"aria-pressed": String(name === view.trial), onclick: () => choose(name)}, el("i", {class: `swatch c${colourOf(labelOf(name))}`}), titleOf(name))));
}
function choose(name) {
  Object.assign(view, {trial: name, round: null, page: 0, drawn: {...view.drawn, selections: null, groups: null, round: null, clients: null, happened: null}});
  whichTrial(); tiles(); header(); refresh();
}

function trialTable() {
  const seeds = hasSeeds();
  head($("trials"), [["Selector", "text"], ["State", "text"], ...(seeds ? [["Seed"]] : []), ["Round"], ["Accuracy"], ["Loss"], ["Failures"], ["Clipped"]]);
  body($("trials"), names().map((name) => {
    const trial = view.trials[name];
    return el("tr", {class: names().length > 1 ? "pick" : null, onclick: () => names().length > 1 && choose(name)},
      el("td", {class: "name"}, el("i", {class: `swatch c${colourOf(labelOf(name))}`}), " ", labelOf(name)),
      el("td", {class: "text"}, el("span", {class: `pill ${trial.state}`}, trial.state)),
      seeds ? el("td", {}, String(trial.seed)) : null,
      el("td", {}, trial.round < 0 ? "–" : `${count(trial.round)} / ${count(trial.rounds)}`),
      el("td", {}, percent(trial.accuracy)), el("td", {}, loss(trial.loss)),
      el("td", {class: trial.failed ? "mild" : "zero"}, count(trial.failed)), el("td", {class: trial.clipped ? "mild" : "zero"}, count(trial.clipped)));
  }));
}
function head(table, columns) {
  const row = el("tr", {}, columns.map(([name, kind, key]) => {
    const sorted = key && view.sort === key;
    return el("th", {class: kind || null, "aria-sort": sorted ? (view.descending ? "descending" : "ascending") : null},
      key ? el("button", {onclick: () => sortBy(key)}, `${name}${sorted ? (view.descending ? " ↓" : " ↑") : ""}`) : name);
  }));
  table.tHead.replaceChildren(row);
}
function body(table, rows) { table.tBodies[0].replaceChildren(...rows); }

// --- curves ----------------------------------------------------------------------------------------------
async function curves() {
  for (const name of names()) {
    const version = view.trials[name].version, have = view.curves.get(name);
    if (have && have.version === version) continue;
    const bins = have ? have.series.test_loss.mean.length : 0;
    const found = await get("curves", {trial: name, start: Math.max(0, bins - 1), width: have ? have.series.test_loss.width : 1});
    const series = have ? have.series : {};
    for (const [key, value] of Object.entries(found)) {
      const old = series[key];
      if (value.start > 0 && old && old.width === value.width) {
        for (const part of ["mean", "low", "high"]) if (value[part]) value[part] = [...(old[part] || []).slice(0, value.start), ...value[part]];
      }
      series[key] = value;
    }
    view.curves.set(name, {version, series});
  }
  for (const name of [...view.curves.keys()]) if (!view.trials[name]) view.curves.delete(name);
  drawCurves();
}
function pointsOf(series) {
  return series.mean.map((y, at) => ({
    x: at * series.width, until: (at + 1) * series.width - 1, y,
    low: series.low ? series.low[at] : undefined, high: series.high ? series.high[at] : undefined,
  }));
}
function linesOf(key) { // one line per label; the trials of one label differ in the seed
  return labels().map((label) => {
    const members = names().filter((name) => labelOf(name) === label && view.curves.has(name)).map((name) => pointsOf(view.curves.get(name).series[key]));
    const longest = members.reduce((a, b) => (b.length > a.length ? b : a), []);
    const points = members.length === 1 ? members[0] : longest.map((point, at) => {
      const here = members.map((each) => each[at]).filter((each) => each && each.x === point.x && each.y !== null);
      const ys = here.map((each) => each.y);
      return ys.length ? {...point, y: ys.reduce((a, b) => a + b) / ys.length, low: Math.min(...here.map((each) => each.low ?? each.y)), high: Math.max(...here.map((each) => each.high ?? each.y))} : {...point, y: null};
    });
    return {name: label, colour: colourOf(label), dash: dashOf(label), points};
  });
}
function drawCurves() {
  const spread = hasSeeds() ? "; the band spans the seeds" : "";
  lineChart($("loss"), {title: `Test loss${spread}`, lines: linesOf("test_loss")});
  lineChart($("accuracy"), {title: `Test accuracy${spread}`, lines: linesOf("test_accuracy"), format: (v) => `${+(100 * v).toFixed(1)} %`, percent: true});
  $("legend").replaceChildren(...(labels().length > 1 ? labels().map((label) => el("span", {class: `key c${colourOf(label)}`}, el("i"), el("span", {}, label))) : []));
}

// --- sections that show one trial ------------------------------------------------------------------------
const SECTIONS = {
  async selections() {
    const data = await get("selections", {trial: view.trial, order: view.order});
    view.heat = data;
    drawHeat();
  },
  async groups() {
    if (!current().groups) { $("groups").hidden = true; return; }
    $("groups").hidden = false;
    view.groupData = await get("groups", {trial: view.trial});
    drawGroups();
  },
  async round() {
    const data = await get("timeline", {trial: view.trial, round: view.round});
    view.timeline = data;
    drawRound();
  },
  async clients() {
    const data = await get("clients", {trial: view.trial, sort: view.sort, descending: view.descending ? 1 : 0, find: view.find, page: view.page});
    view.page = data.page;
    drawClients(data);
  },
  async happened() {
    const found = await get("notes", {trial: view.trial});
    $("happened").hidden = !found.length;
    $("notes").replaceChildren(...found.map((each) => el("li", {}, el("span", {}, each.round === null ? "" : `round ${each.round}`), el("span", {}, each.kind), el("span", {}, each.text))));
  },
};

function drawHeat() {
  const data = view.heat;
  if (!data) return;
  view.order = data.order;
  $("orders").replaceChildren(...data.orders.map((order) => el("button", {"aria-pressed": String(order === data.order), onclick: () => { view.order = order; view.drawn.selections = null; refresh(); }}, {size: "by size", group: "by group", draws: "by draws"}[order])));
  const rows = data.rows.length, bins = rows && data.rows.some((row) => row.clients > 1);
  const what = data.order === "group" ? "Each row is a group" : bins ? `Each row is about ${count(Math.round(data.clients / rows))} clients${data.order === "size" ? ", those with the most samples on top" : ", those drawn most on top"}` : `Each row is a client, ${data.order === "size" ? "the one with the most samples on top" : "the one drawn most on top"}`;
  const wide = data.width > 1 ? ` Each column is ${data.width} rounds.` : "";
  $("selections-about").textContent = rows ? `${what}. Darker: drawn more often${!bins && data.width === 1 ? "; ×: no usable reply" : ""}.${wide} Probability and importance are those of each client's last selection${bins ? ", averaged" : ""}.` : "";
  heatMap($("heat"), data);
}

function drawGroups() {
  const {groups, all} = view.groupData, measured = groups.some((each) => each.accuracy !== null);
  head($("group-table"), [["Group", "text"], ["Clients"], ["Samples"], ["Draws"], ["Never drawn"], ...(measured ? [["Loss"], ["Accuracy"]] : [])]);
  const share = (value) => {
    const bar = el("i");
    bar.style.width = `${100 * (value || 0) / Math.max(0.01, ...groups.flatMap((each) => [each.samples || 0, each.draws || 0]))}%`;
    return [percent(value, 0), el("span", {class: "meter"}, bar)];
  };
  body($("group-table"), groups.map((each) => el("tr", {}, el("td", {class: "name"}, each.name), el("td", {}, count(each.clients)), el("td", {}, share(each.samples)), el("td", {}, share(each.draws)), el("td", {class: each.never ? "" : "zero"}, count(each.never)), ...(measured ? [el("td", {}, loss(each.loss)), el("td", {}, percent(each.accuracy))] : []))));
  const figure = $("group-accuracy");
  if (!measured) { figure.replaceChildren(el("p", {class: "empty"}, "Accuracy by group is measured only if clients evaluate the model (evaluate-share).")); return; }
  const ranked = [...groups].filter((each) => each.accuracy !== null).sort((a, b) => a.accuracy - b.accuracy);
  const shown = ranked.length <= COLOURS ? groups.filter((each) => each.series.accuracy) : [ranked[0], ranked[Math.floor(ranked.length / 2)], ranked[ranked.length - 1]];
  lineChart(figure, {title: shown.length < all ? "Accuracy of the worst, the middle and the best group" : "Accuracy by group", lines: shown.map((each, at) => ({name: each.name, colour: at % COLOURS, dash: 0, points: pointsOf(each.series.accuracy)})), format: (v) => `${+(100 * v).toFixed(1)} %`, percent: true});
  figure.append(el("div", {class: "legend"}, shown.map((each, at) => el("span", {class: `key c${at % COLOURS}`}, el("i"), el("span", {}, each.name)))));
}

function phasesOf(data) { // the parts of a round that the history knows
  const words = {poll: "polling and selecting", train: "waiting for replies", aggregate: "computing the new model"};
  const known = Object.entries(words).filter(([phase]) => data.phases && data.phases[phase] !== undefined && data.phases[phase] !== null);
  return known.length ? ` (${known.map(([phase, word]) => `${word} ${span(data.phases[phase])}`).join(", ")})` : "";
}
function drawRound() {
  const data = view.timeline;
  if (!data) return;
  $("which-round").textContent = data.round === null ? "–" : `round ${data.round}`;
  $("earlier").disabled = data.round === null || data.round <= data.first;
  $("later").disabled = data.round === null || data.round >= data.last;
  $("newest").disabled = view.round === null;
  const parts = data.round === null ? [] : [`${count(data.available)} clients were selectable, ${several(data.selected, "client")} trained, ${data.used} ${data.used === 1 ? "reply was" : "replies were"} used`, data.seconds ? `the round took ${span(data.seconds)}${phasesOf(data)}` : ""].filter(Boolean);
  if (data.eligible) parts.push(`only clients with ${data.eligible} could be selected, which left out ${several(data.ineligible, "other online client")}`);
  if (data.in_flight) parts.push(`${several(data.in_flight, "client")} went on training when the round ended`);
  const timed = data.clients && data.clients.some((each) => each.reply !== null);
  if (timed && data.clients.length < data.selected) parts.push(`the ${data.clients.length} slowest are shown`);
  $("round-about").textContent = parts.length ? `${parts.join("; ")}.${data.skipped ? ` Skipped: ${data.skipped}` : ""}` : "";
  timelineChart($("timeline"), data);
  const times = data.clients && data.clients.some((each) => each.reply !== null);
  const key = [["k-way", "from the server's message to the client's reply"], ["k-train", "training, as the client reports it (its start is not known)"], ["k-wait", "no reply while the server waited"]];
  const used = key.filter(([kind]) => times && (kind !== "k-train" || data.clients.some((each) => each.training !== null)) && (kind !== "k-wait" || data.clients.some((each) => each.reply === null)));
  $("timeline-key").replaceChildren(...used.map(([kind, text]) => el("li", {class: `key ${kind}`}, el("i", {class: "box"}), el("span", {}, text))));
  const now = data.now;
  $("under-way").hidden = !now;
  if (now) {
    const words = {asked: "asked", working: "downloading or training", replied: "replied"}, total = now.phases.asked + now.phases.working + now.phases.replied;
    const bar = el("div", {class: "phases"}, Object.keys(words).reverse().map((phase) => { const part = el("i", {class: `ph-${phase}`}); part.style.width = `${100 * now.phases[phase] / total}%`; return part; }));
    $("under-way").replaceChildren(el("p", {}, `Round ${now.round} is under way: ${Object.entries(words).filter(([phase]) => now.phases[phase]).map(([phase, word]) => `${now.phases[phase]} ${word}`).join(", ")}.`), bar);
  }
}

function sortBy(key) {
  view.descending = view.sort === key ? !view.descending : !["name", "group", "state"].includes(key);
  Object.assign(view, {sort: key, page: 0});
  view.drawn.clients = null;
  refresh();
}
function ago(seconds) { return seconds < 5 ? "now" : `${span(seconds)} ago`; }
function drawClients(data) {
  const now = view.state.now, has = (key) => data.rows.some((row) => row[key] !== null && row[key] !== undefined);
  const grouped = view.trial !== null && current().groups > 0, seen = has("last_seen");
  const columns = [["Client", "text", "name"], ["State", "text", "state"], ...(grouped ? [["Group", "text", "group"]] : []), ...(seen ? [["Last seen"]] : []), ...(has("battery") ? [["Battery", "", "battery"]] : []),
    ["Samples", "", "size"], ["Draws", "", "drawn"], ["Rounds", "", "selected"], ["Last round", "", "round"], ["Failed", "", "failed"], ["Clipped", "", "clipped"], ["Quarantined", "", "quarantined"], ["Probability", "", "probability"], ["Importance", "", "importance"], ...(has("reply") ? [["Reply", "", "reply"]] : [])];
  head($("client-table"), columns);
  const number = (value, kind) => el("td", {class: value ? kind : "zero"}, count(value));
  body($("client-table"), data.rows.map((row) => el("tr", {title: row.failure ? `last failure: ${row.failure}` : null},
    el("td", {class: "name"}, row.name), el("td", {class: "text"}, ...(row.state === "unknown" ? ["–"] : [el("i", {class: `dot ${row.state}`}), row.state])), grouped ? el("td", {class: "text"}, row.group ?? "–") : null,
    seen ? el("td", {}, row.last_seen === null ? "never" : ago(now - row.last_seen)) : null, has("battery") ? el("td", {class: row.battery !== null && row.battery < 20 ? "mild" : ""}, row.battery === null ? "–" : `${Math.round(row.battery)} %`) : null,
    el("td", row.used_size === null || row.used_size === row.size ? {} : {title: `claims ${count(row.size)}; its weights are computed from ${count(Math.round(row.used_size))}`}, row.used_size === null || short(row.used_size) === short(row.size) ? short(row.size) : `${row.size ? short(row.size) : "–"} → ${short(row.used_size)}`), number(row.drawn, ""), number(row.selected, ""), el("td", {class: row.round === null ? "zero" : ""}, row.round === null ? "never" : count(row.round)),
    number(row.failed, "mild"), number(row.clipped, "mild"), number(row.quarantined, "hot"),
    el("td", {}, row.probability === null ? "–" : percent(row.probability, row.probability < 0.01 ? 3 : 1)), el("td", {}, row.importance === null ? "–" : row.importance.toFixed(2)), has("reply") ? el("td", {}, span(row.reply)) : null)));
  const words = Object.entries(data.states).filter(([state]) => state !== "unknown");
  $("states").replaceChildren(...words.map(([state, many]) => el("span", {}, el("i", {class: `dot ${state}`}), `${count(many)} ${state}`)));
  $("page-number").textContent = data.found ? `${count(data.page * 25 + 1)}–${count(Math.min(data.found, data.page * 25 + 25))} of ${count(data.found)}` : "none found";
  $("page-back").disabled = data.page === 0;
  $("page-on").disabled = data.page >= data.pages - 1;
  $("clients").querySelector(".foot").hidden = !view.trial || (data.pages < 2 && data.found > 0);
  $("others").hidden = !data.others.length;
  $("others-head").textContent = view.trial ? "Devices that are not in this trial" : "";
  head($("other-table"), [["Device", "text"], ["State", "text"], ["Last seen"]]);
  body($("other-table"), data.others.map((each) => el("tr", {}, el("td", {class: "name"}, each.name), el("td", {class: "text"}, el("i", {class: `dot ${each.state}`}), each.state), el("td", {}, each.seen === null ? "never" : ago(now - each.seen)))));
  $("client-table").hidden = !view.trial;
  $("find").hidden = !view.trial;
}

// --- the log ---------------------------------------------------------------------------------------------
const LINES = 2000;
function logLine(line) { // Flower's lines begin with a level in a column of 14 characters
  const found = /^(INFO|DEBUG|WARNING|ERROR|CRITICAL) *: {0,6}/.exec(line);
  if (!found) return el("span", {}, `${line}\n`);
  const text = line.slice(found[0].length), quiet = found[1] === "INFO" || found[1] === "DEBUG";
  return el("span", quiet ? {} : {class: found[1] === "WARNING" ? "mild" : "hot"}, `${quiet ? "" : `${found[1]}: `}${text}\n`);
}
async function log() {
  options($("logs"), view.state.logs, view.log ?? view.state.logs[0]);
  $("log").hidden = !view.state.logs.length;
  if (!view.state.logs.length) return;
  const name = $("logs").value, pre = $("lines");
  if (name !== view.log) { view.log = name; view.logEnd = null; pre.replaceChildren(); }
  const found = await get("log", {name, start: view.logEnd});
  if (found.start !== view.logEnd) pre.replaceChildren();
  view.logEnd = found.end;
  if (!found.lines.length) return;
  const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 30;
  pre.append(...found.lines.map(logLine));
  while (pre.childNodes.length > LINES) pre.firstChild.remove();
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

// --- the loop --------------------------------------------------------------------------------------------
let asking = false, again = false;
async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    do { again = false; await ask(); } while (again);
    view.failures = 0;
  } catch (error) {
    view.failures += 1;
    $("state").textContent = "not reachable";
    $("state").className = "pill interrupted";
  }
  asking = false;
}
async function ask() {
  const state = await get("state");
  if (state.run !== view.run) Object.assign(view, {run: state.run, trial: null, round: null, page: 0, drawn: {}, curves: new Map(), log: null, logEnd: null});
  Object.assign(view, {state, trials: state.trials});
  if (!view.trials[view.trial]) view.trial = names()[0] ?? null;
  header(); tiles(); trialTable(); whichTrial();
  await curves();
  for (const part of ["learning", "selections", "round"]) $(part).hidden = !view.trial;
  $("clients").hidden = !view.trial && state.nodes === null;
  if (!view.trial) {
    for (const part of ["groups", "happened"]) $(part).hidden = true;
    if (state.nodes !== null) await SECTIONS.clients();
  } else {
    for (const [name, show] of Object.entries(SECTIONS)) {
      // The state of a device can change without a new line in the history.
      const version = `${view.trial} ${current().version} ${["clients", "round"].includes(name) && state.nodes !== null ? state.now : ""}`;
      const needed = view.visible.has(name) || name === "groups" || name === "happened";
      if (needed && view.drawn[name] !== version) { await show(); view.drawn[name] = version; }
    }
  }
  if (view.visible.has("log")) await log();
}
function pause() {
  if (view.failures) return Math.min(10000, 1000 * 2 ** Math.min(4, view.failures));
  if (document.hidden) return 30000;
  const going = view.state && (!view.state.complete || Object.values(view.trials).some((each) => ["running", "waiting"].includes(each.state)) || !names().length);
  return view.state && !view.state.complete ? 300 : going ? 2000 : 8000;
}
function loop() { refresh().finally(() => setTimeout(loop, pause())); }

function redraw() {
  if (!view.state) return;
  drawCurves(); drawHeat(); drawRound();
  if (view.groupData && !$("groups").hidden) drawGroups();
}
let resized = 0, width = innerWidth;
addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; clearTimeout(resized); resized = setTimeout(redraw, 120); } });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
const watcher = new IntersectionObserver((entries) => {
  let more = false;
  for (const entry of entries) {
    if (entry.isIntersecting) { more = more || !view.visible.has(entry.target.id); view.visible.add(entry.target.id); } else view.visible.delete(entry.target.id);
  }
  if (more && view.state) refresh();
}, {rootMargin: "300px"});
for (const section of document.querySelectorAll("section.card")) watcher.observe(section);

const step = (by) => { view.round = Math.max(view.timeline.first, Math.min(view.timeline.last, view.timeline.round + by)); view.drawn.round = null; refresh(); };
$("earlier").addEventListener("click", () => step(-1));
$("later").addEventListener("click", () => step(1));
$("newest").addEventListener("click", () => { view.round = null; view.drawn.round = null; refresh(); });
$("page-back").addEventListener("click", () => { view.page -= 1; view.drawn.clients = null; refresh(); });
$("page-on").addEventListener("click", () => { view.page += 1; view.drawn.clients = null; refresh(); });
$("runs").addEventListener("change", (event) => { Object.assign(view, {run: event.target.value, trial: null, round: null, page: 0, drawn: {}, curves: new Map(), log: null, logEnd: null}); refresh(); });
$("logs").addEventListener("change", () => refresh());
let typing = 0;
$("find").addEventListener("input", (event) => { clearTimeout(typing); typing = setTimeout(() => { Object.assign(view, {find: event.target.value, page: 0}); view.drawn.clients = null; refresh(); }, 250); });
loop();
