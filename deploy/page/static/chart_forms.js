// Draws the page's charts. All text is set as text: the page's security policy forbids HTML.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

function make(namespace, tag, attributes, children) {
  const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
const vg = (tag, attributes, ...children) => make(SVG, tag, attributes, children);

const tip = {
  node: () => document.getElementById("tip"),
  show(event, text) {
    const node = this.node();
    node.textContent = text;
    node.hidden = false;
    const box = node.getBoundingClientRect();
    const x = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 14;
    const y = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
    node.style.left = `${Math.max(6, x)}px`;
    node.style.top = `${Math.max(6, y)}px`;
  },
  hide() { this.node().hidden = true; },
};

function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].find((each) => each * power >= raw) * power;
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}
function roundTicks(last, count) { // whole rounds only
  return [...new Set(ticks(0, Math.max(1, last), count).map(Math.round))];
}
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(1);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(+value.toPrecision(3));
}
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds > 0 && seconds < 0.00995) return `${+(1000 * seconds).toPrecision(2)} ms`; // a round of a batched simulation
  if (seconds < 10) return `${seconds < 0.995 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}
function cut(text, width, letter = 6.2) { // how much of a label fits
  const most = Math.max(3, Math.floor(width / letter));
  return text.length <= most ? text : `${text.slice(0, most - 1)}…`;
}

// --- lines over the rounds -------------------------------------------------------------------------------
// lines: [{name, colour (0..6), dash (0..3), points: [{x, y, low, high}]}]; y null: no value.
function lineChart(figure, {title, lines, format = short, percent = false}) {
  const width = Math.max(240, figure.clientWidth), height = width < 420 ? 210 : 248;
  const left = 44, right = 12, top = 8, bottom = 24;
  const all = lines.flatMap((line) => line.points).filter((point) => point.y !== null);
  const caption = el("figcaption", {}, title);
  if (!all.length) { figure.replaceChildren(caption, el("p", {class: "empty"}, "not measured yet")); return; }
  let low = Math.min(...all.map((p) => p.low ?? p.y)), high = Math.max(...all.map((p) => p.high ?? p.y));
  if (low > 0 && low < 0.4 * high && !percent) low = 0;
  if (high - low < 1e-9) { low -= Math.abs(low) * 0.05 + 0.01; high += Math.abs(high) * 0.05 + 0.01; }
  const marks = ticks(low, high, 5), step = marks.length > 1 ? marks[1] - marks[0] : high - low;
  low = Math.min(low, Math.floor(low / step + 1e-9) * step); high = Math.max(high, Math.ceil(high / step - 1e-9) * step);
  if (percent) { low = Math.max(0, low); high = Math.min(1, high); }
  const last = Math.max(1, ...all.map((p) => p.x));
  const x = (value) => left + (value / last) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const plot = vg("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": title});
  for (const mark of ticks(low, high, 5)) {
    plot.append(vg("line", {class: "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark)}));
    plot.append(vg("text", {x: left - 8, y: y(mark) + 4, "text-anchor": "end"}, format(+mark.toPrecision(10))));
  }
  for (const mark of roundTicks(last, width / 90)) {
    plot.append(vg("text", {x: x(mark), y: height - 6, "text-anchor": x(mark) > width - 20 ? "end" : "middle"}, mark.toLocaleString("en")));
  }
  const path = (points, of) => {
    let text = "", pen = false;
    for (const point of points) {
      if (point.y === null) { pen = false; continue; }
      text += `${pen ? "L" : "M"}${x(point.x).toFixed(1)} ${y(of(point)).toFixed(1)}`;
      pen = true;
    }
    return text;
  };
  for (const line of lines) {
    const known = line.points.filter((p) => p.y !== null);
    if (known.some((p) => p.low !== undefined && p.low !== p.high)) {
      const forth = known.map((p) => `${x(p.x).toFixed(1)} ${y(p.high).toFixed(1)}`);
      const back = known.map((p) => `${x(p.x).toFixed(1)} ${y(p.low).toFixed(1)}`).reverse();
      plot.append(vg("path", {class: `band c${line.colour}`, d: `M${[...forth, ...back].join("L")}Z`}));
    }
  }
  for (const line of lines) {
    plot.append(vg("path", {class: `line c${line.colour} d${line.dash || 0}`, d: path(line.points, (p) => p.y), "data-name": line.name}));
    const known = line.points.filter((p) => p.y !== null);
    if (known.length === 1) plot.append(vg("circle", {class: `c${line.colour}`, cx: x(known[0].x), cy: y(known[0].y), r: 3}));
  }
  const cross = vg("line", {class: "cross", y1: top, y2: height - bottom, visibility: "hidden"});
  plot.append(cross);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const at = (((event.clientX - box.left) * width) / box.width - left) / (width - left - right) * last;
    const xs = [...new Set(all.map((p) => p.x))];
    const near = xs.reduce((a, b) => (Math.abs(b - at) < Math.abs(a - at) ? b : a));
    cross.setAttribute("x1", x(near)); cross.setAttribute("x2", x(near)); cross.setAttribute("visibility", "visible");
    const rows = lines.map((line) => [line, line.points.find((p) => p.x === near)]).filter(([, p]) => p && p.y !== null);
    const first = rows[0] && rows[0][1];
    const when = first && first.until > near ? `rounds ${near}–${first.until}` : `round ${near}`;
    tip.show(event, [when, ...rows.map(([line, p]) => `${line.name}: ${format(p.y)}${p.low !== undefined && p.low !== p.high ? ` (${format(p.low)} to ${format(p.high)})` : ""}`)].join("\n"));
  });
  plot.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); tip.hide(); });
  figure.replaceChildren(caption, plot);
}

// --- who was selected when -------------------------------------------------------------------------------
function heatColours() {
  const style = getComputedStyle(document.documentElement);
  return [0, 1, 2, 3, 4, 5].map((step) => {
    const text = style.getPropertyValue(`--heat-${step}`).trim();
    return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  });
}
function shade(colours, share) {
  if (share <= 0) return `rgb(${colours[0].join(",")})`;
  const at = 1 + Math.min(1, share) * 4, low = Math.min(4, Math.floor(at)), part = at - low;
  return `rgb(${colours[low].map((c, i) => Math.round(c + part * (colours[low + 1][i] - c))).join(",")})`;
}
function rowName(row, order) {
  if (row.clients === 1 || order === "group") return row.name;
  return `${row.clients} clients`;
}
function rowDetail(row) {
  const samples = row.low === row.high ? `${short(row.low)} samples` : `${short(row.low)} to ${short(row.high)} samples`;
  return row.clients === 1 ? samples : `${samples} each`;
}
function rowLabel(row, data) { // a label that repeats the one above is left out
  const at = data.rows.indexOf(row), label = plainLabel(row, data);
  return row.clients > 1 && at > 0 && plainLabel(data.rows[at - 1], data) === label ? "" : label;
}
function plainLabel(row, data) {
  if (row.clients === 1 || data.order === "group") return row.name;
  if (data.order === "draws") return `${short(row.draws / row.clients)} draws`;
  return row.low === row.high ? `${short(row.low)}` : `${short(row.high)}–${short(row.low)}`;
}

function heatMap(figure, data) {
  if (!data.rows.length || !data.columns) { figure.replaceChildren(el("p", {class: "empty"}, "no client has trained yet")); return; }
  const grid = el("div", {class: "heat-grid"}), first = el("div"), second = el("div");
  grid.append(first, second);
  figure.replaceChildren(grid);
  const tall = data.rows.length <= 12 ? 24 : data.rows.length <= 24 ? 18 : 13, top = 20, bottom = 24;
  const height = top + tall * data.rows.length + bottom;
  drawCells(first, data, tall, top, height);
  drawShares(second, data, tall, top, height);
}

function drawCells(place, data, tall, top, height) {
  const width = Math.max(240, place.clientWidth), style = getComputedStyle(document.documentElement);
  const canvas = el("canvas", {role: "img", "aria-label": "How often each client was drawn in each round"});
  const ratio = Math.max(1, devicePixelRatio || 1);
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
  place.append(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = `${tall > 14 ? 11.5 : 10}px ${getComputedStyle(document.body).fontFamily}`;
  const left = Math.min(width < 480 ? 84 : 130, 12 + Math.max(pen.measureText("samples each").width, ...data.rows.map((row) => pen.measureText(rowLabel(row, data)).width)));
  const colours = heatColours(), wide = (width - left) / data.columns;
  const gap = wide >= 6 ? 1.5 : wide >= 4 ? 0.6 : 0, between = tall > 14 ? 2 : 1;
  const value = (row, column) => data.cells[row][column] / data.rows[row].clients / data.width;
  const most = Math.max(1e-12, ...data.rows.map((_, row) => Math.max(...data.cells[row].map((__, column) => value(row, column)))));
  pen.textBaseline = "middle";
  const soft = style.getPropertyValue("--soft"), bad = style.getPropertyValue("--bad");
  pen.fillStyle = soft;
  const manySizes = data.order !== "group" && data.rows[0].clients > 1;
  pen.fillText(manySizes ? (data.order === "draws" ? "each client" : "samples each") : data.order === "group" ? "group" : "client", 0, 8);
  data.rows.forEach((row, r) => {
    const y = top + r * tall;
    pen.fillStyle = soft;
    pen.fillText(cut(rowLabel(row, data), left - 8, tall > 14 ? 6.4 : 5.6), 0, y + tall / 2);
    for (let column = 0; column < data.columns; column++) {
      const x = left + column * wide;
      pen.fillStyle = shade(colours, Math.sqrt(value(r, column) / most));
      pen.fillRect(x, y, Math.max(0.5, wide - gap) + (gap ? 0 : 0.4), tall - between);
      if (data.rows[r].clients === 1 && data.width === 1 && data.missed[r][column] && wide >= 4) {
        const cx = x + (wide - gap) / 2, cy = y + (tall - between) / 2, arm = Math.min(3.5, wide / 3);
        pen.strokeStyle = bad; pen.lineWidth = 1.6;
        pen.beginPath(); pen.moveTo(cx - arm, cy - arm); pen.lineTo(cx + arm, cy + arm); pen.moveTo(cx + arm, cy - arm); pen.lineTo(cx - arm, cy + arm); pen.stroke();
      }
    }
  });
  pen.font = `11.5px ${getComputedStyle(document.body).fontFamily}`;
  const rounds = data.columns * data.width;
  for (const mark of roundTicks(rounds, (width - left) / 80)) {
    const number = Math.max(1, mark);
    if (number > data.round || (number > 1 && ((number - 0.5) / rounds) * (width - left) < 70)) continue;
    pen.fillStyle = soft; pen.textAlign = number === 1 ? "left" : number > rounds - data.width ? "right" : "center";
    const middle = left + ((number - 0.5) / rounds) * (width - left);
    pen.fillText(number === 1 ? "round 1" : number.toLocaleString("en"), number === 1 ? left : number > rounds - data.width ? width : middle, height - 10);
  }
  pen.textAlign = "left";
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const r = Math.floor((event.clientY - box.top - top) / tall), column = Math.floor((event.clientX - box.left - left) / wide);
    if (r < 0 || r >= data.rows.length || event.clientX - box.left > width) { tip.hide(); return; }
    const row = data.rows[r], lines = [rowName(row, data.order), rowDetail(row)];
    if (column >= 0 && column < data.columns) {
      const from = column * data.width + 1, to = Math.min(data.round, from + data.width - 1), draws = data.cells[r][column];
      lines.push(`${from === to ? `round ${from}` : `rounds ${from} to ${to}`}: ${draws} ${draws === 1 ? "draw" : "draws"}`);
      if (data.missed[r][column]) lines.push(`${data.missed[r][column]} without a usable reply`);
    } else lines.push(`${row.draws} draws in all`);
    tip.show(event, lines.join("\n"));
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
}

function drawShares(place, data, tall, top, height) {
  const width = Math.max(220, place.clientWidth);
  const plot = vg("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": "Draws, probability and importance of the same clients"});
  const alone = width > 320 ? 84 : 0; // below the other panel, the rows need names again
  const wide = (width - alone) / 3;
  const parts = [
    ["draws per client", data.rows.map((row) => row.draws / row.clients), short],
    ["probability", data.rows.map((row) => row.probability), (v) => `${short(100 * v)} %`],
    ["importance", data.rows.map((row) => row.importance), short],
  ];
  parts.forEach(([name, values, format], part) => {
    const x0 = alone + part * wide, room = wide - 16, most = Math.max(...values.filter((v) => v !== null), 1e-12);
    plot.append(vg("text", {x: x0, y: 12}, wide < 92 && part === 0 ? "draws each" : name));
    values.forEach((value, r) => {
      const y = top + r * tall, thick = Math.max(4, tall - (tall > 14 ? 12 : 7));
      plot.append(vg("rect", {x: x0, y: y + (tall - thick) / 2 - 1, width: room, height: thick, rx: thick / 2, class: "track"}));
      if (value !== null) {
        plot.append(vg("rect", {x: x0, y: y + (tall - thick) / 2 - 1, width: Math.max(thick / 2, (value / most) * room), height: thick, rx: thick / 2, class: `share p${part}`}));
      }
    });
    plot.append(vg("text", {x: x0 + room, y: height - 7, "text-anchor": "end"}, format(most)));
  });
  if (alone) data.rows.forEach((row, r) => plot.append(vg("text", {x: 0, y: top + r * tall + tall / 2 + 3}, cut(rowLabel(row, data), alone - 8))));
  plot.addEventListener("pointermove", (event) => {
    const r = Math.floor((event.clientY - plot.getBoundingClientRect().top - top) / tall), row = data.rows[r];
    if (!row) { tip.hide(); return; }
    tip.show(event, [rowName(row, data.order), rowDetail(row), ...parts.map(([name, values, format]) => `${name}: ${values[r] === null ? "not known" : format(values[r])}`), row.never ? (row.clients === 1 ? "never drawn" : `${row.never} never drawn`) : ""].filter(Boolean).join("\n"));
  });
  plot.addEventListener("pointerleave", () => tip.hide());
  place.append(plot);
}

// --- a round's timeline ----------------------------------------------------------------------------------
function timelineChart(figure, data) {
  if (!data.round || !data.clients || !data.clients.length) { figure.replaceChildren(el("p", {class: "empty"}, data.round ? "no client was selected in this round" : "no round has ended yet")); return; }
  const known = data.clients.some((each) => each.reply !== null);
  if (!known) { figure.replaceChildren(el("p", {class: "empty"}, "The history does not say when the replies came.")); return; }
  const width = Math.max(240, figure.clientWidth), left = width < 480 ? 92 : 150, right = 12, top = 4, bottom = 24;
  const rows = [...data.clients].sort((a, b) => (a.reply ?? 1e9) - (b.reply ?? 1e9));
  const tall = rows.length <= 12 ? 26 : 17, height = top + rows.length * tall + bottom;
  const most = Math.max(data.seconds || 0, ...rows.map((each) => each.reply || 0)) || 1;
  const x = (seconds) => left + (seconds / most) * (width - left - right);
  const plot = vg("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Timeline of round ${data.round}`});
  for (const mark of ticks(0, most, width / 110)) {
    plot.append(vg("line", {class: "grid", x1: x(mark), x2: x(mark), y1: top, y2: height - bottom + 4}));
    plot.append(vg("text", {x: x(mark), y: height - 6, "text-anchor": mark === 0 ? "start" : x(mark) > width - 30 ? "end" : "middle"}, mark === 0 ? "asked" : span(mark)));
  }
  rows.forEach((each, r) => {
    const y = top + r * tall + 3, thick = tall - 8;
    plot.append(vg("text", {x: 0, y: y + thick / 2 + 4}, cut(each.client, left - 10)));
    const end = each.reply ?? most, training = Math.min(each.training ?? 0, end);
    const kind = each.reply === null ? "k-wait" : "k-way";
    plot.append(vg("rect", {class: kind, x: x(0), y, width: Math.max(1, x(end) - x(0)), height: thick, rx: 3, opacity: each.reply === null ? 0.35 : 1}));
    if (training > 0 && each.reply !== null) {
      // The start of the training is not known, so the training is drawn in the middle of the time until the reply.
      plot.append(vg("rect", {class: "k-train", x: x((end - training) / 2), y, width: Math.max(1, x(training) - x(0)), height: thick}));
    }
    plot.append(vg("rect", {x: 0, y: y - 3, width, height: tall, fill: "transparent", onpointermove: (event) => tip.show(event, [
      each.client, each.draws > 1 ? `drawn ${each.draws} times` : "", each.reply === null ? "no reply in time" : `reply after ${span(each.reply)}`,
      each.training === null ? "" : `trained for ${span(each.training)}, as it reports`, each.used ? "" : `not used: ${each.reason || "no reply"}`].filter(Boolean).join("\n")),
      onpointerleave: () => tip.hide()}));
  });
  figure.replaceChildren(plot);
}
