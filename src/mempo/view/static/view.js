"use strict";
// Curves, keys, and news of a run that goes on. Texts are set as texts: nothing here makes elements of them.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 190, LEFT = 46, TOP = 8, BOTTOM = 20, LABEL_GAP = 13;

function svg(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

function shown(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(4)));
}

// The mean of the steps around each step.
function smoothed(values, width) {
  const half = Math.floor(width / 2);
  return values.map((_, i) => {
    const part = values.slice(Math.max(i - half, 0), i + half + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

// How many first letters all names share, whole words of them.
function alike(names) {
  let count = 0;
  while (count < names[0].length && names.every((name) => name[count] === names[0][count])) count++;
  return names[0].slice(0, count).search(/[\p{L}\p{N}]*$/u);
}

function range(chart) {
  const all = chart.series.flatMap((one) => one.y);
  let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  // Of what is healthy, the nearer edge comes into view where a curve leaves it.
  if (chart.low !== null && low < chart.low) high = Math.max(high, chart.low);
  if (chart.high !== null && high > chart.high) low = Math.min(low, chart.high);
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
  return [low - pad, high + pad];
}

function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(n * step);
  return found;
}

function draw(chart, runs, width, parent) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption"), title = document.createElement("b"), readout = document.createElement("span");
  title.textContent = chart.title;
  const idle = chart.about ? `healthy: ${chart.about}` : "";
  readout.textContent = idle;
  caption.append(title, readout);
  figure.append(caption);
  parent.append(figure);

  const full = Math.max(figure.clientWidth, 240), right = runs.length > 1 ? Math.min(120, full * 0.3) : 12;
  const last = chart.series.map((one) => `${runs[one.run]}: ${shown(one.y.at(-1))}`).join(", ");
  const box = svg("svg", { viewBox: `0 0 ${full} ${HEIGHT}`, role: "img", tabindex: "0" }, figure);
  box.setAttribute("aria-label", `${chart.title}, last value ${last}`);
  const steps = [...new Set(chart.series.flatMap((one) => one.x))].sort((a, b) => a - b);
  const [low, high] = range(chart), first = steps[0], span = steps.at(-1) - first || 1;
  const x = (step) => LEFT + (full - LEFT - right) * (steps.length > 1 ? (step - first) / span : 0.5);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (Math.min(Math.max(value, low), high) - low) / (high - low));

  if (chart.low !== null || chart.high !== null) {
    const top = y(chart.high ?? high), bottom = y(chart.low ?? low);
    svg("rect", { class: "healthy", x: LEFT, y: top, width: full - LEFT - right, height: Math.max(bottom - top, 1) }, box);
  }
  for (const value of ticks(low, high)) {
    svg("line", { class: "axis", x1: LEFT, x2: full - right, y1: y(value), y2: y(value) }, box);
    svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, box).textContent = shown(value);
  }
  svg("text", { x: LEFT, y: HEIGHT - 4 }, box).textContent = `step ${first}`;
  svg("text", { x: full - right, y: HEIGHT - 4, "text-anchor": "end" }, box).textContent = String(steps.at(-1));

  const ends = [];
  for (const one of chart.series) {
    const style = `c${one.run % 7}${one.run >= 7 ? " d1" : ""}`, points = (values) => values.map((value, i) => `${x(one.x[i])},${y(value)}`).join(" ");
    one.shown = width > 1 ? smoothed(one.y, width) : one.y;
    if (width > 1) svg("polyline", { class: `curve raw ${style}`, points: points(one.y) }, box);
    svg("polyline", { class: `curve ${style}`, points: points(one.shown) }, box);
    if (one.x.length < 20) one.x.forEach((step, i) => svg("circle", { class: `f${one.run % 7}`, cx: x(step), cy: y(one.shown[i]), r: 3 }, box));
    ends.push({ run: one.run, x: x(one.x.at(-1)), y: y(one.shown.at(-1)) + 4 });
  }
  if (runs.length > 1) { // names beside the ends of their lines, none on another
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + LABEL_GAP); });
    for (const end of ends) {
      const name = runs[end.run].slice(alike(runs)), chars = Math.floor((right - 5) / 6.7);
      const label = svg("text", { class: `f${end.run % 7}`, x: full - right + 5, y: end.y }, box);
      label.textContent = name.length > chars ? `${name.slice(0, chars - 1)}…` : name;
      svg("title", {}, label).textContent = runs[end.run];
    }
  }

  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" }, box);
  let at = steps.length - 1;
  function point(index) {
    at = Math.min(Math.max(index, 0), steps.length - 1);
    const step = steps[at];
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    cursor.setAttribute("visibility", "visible");
    const values = chart.series.map((one) => {
      const i = one.x.indexOf(step), name = runs.length > 1 ? `${runs[one.run]} ` : "";
      return i < 0 ? null : `${name}${shown(one.shown[i])}${width > 1 ? ` (${shown(one.y[i])})` : ""}`;
    });
    readout.textContent = `step ${step}: ${values.filter((value) => value !== null).join(" · ")}`;
  }
  function leave() {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = idle;
  }
  box.addEventListener("pointermove", (event) => {
    const place = ((event.clientX - box.getBoundingClientRect().left) / box.clientWidth) * full;
    let best = 0;
    steps.forEach((step, i) => { if (Math.abs(x(step) - place) < Math.abs(x(steps[best]) - place)) best = i; });
    point(best);
  });
  box.addEventListener("pointerleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("focus", () => point(at));
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { point(at + move); event.preventDefault(); }
  });
}

function drawAll(data, width) {
  const place = document.getElementById("charts");
  place.replaceChildren();
  for (const section of data.sections) {
    const title = document.createElement("h2"), grid = document.createElement("div");
    title.textContent = section.title;
    grid.className = "charts";
    place.append(title, grid);
    for (const chart of section.charts) draw(chart, data.runs, width, grid);
  }
}

function curves() {
  const source = document.getElementById("curves");
  if (!source) return;
  let data = JSON.parse(source.textContent);
  const smooth = document.getElementById("smooth");
  const again = () => drawAll(data, Number(smooth.value));
  smooth.addEventListener("change", again);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; again(); } });
  again();
  const live = document.getElementById("live");
  if (live) setInterval(async () => {
    if (document.hidden) return;
    const answer = await fetch(`${live.dataset.url}?version=${encodeURIComponent(data.version)}`).catch(() => null);
    if (!answer || answer.status !== 200) return;
    data = await answer.json();
    again();
    const page = await fetch(location.href).then((found) => found.text()).catch(() => null);
    const fresh = page && new DOMParser().parseFromString(page, "text/html").getElementById("folders");
    if (fresh) document.getElementById("folders").replaceWith(fresh);
  }, 4000);
}

function keys() {
  const turns = [...document.querySelectorAll(".turn")];
  let at = turns.findIndex((turn) => `#${turn.id}` === location.hash);
  function go(to) {
    if (!turns.length) return;
    turns[at]?.classList.remove("now");
    at = Math.min(Math.max(to, 0), turns.length - 1);
    turns[at].classList.add("now");
    turns[at].focus({ preventScroll: true });
    turns[at].scrollIntoView({ block: "start" });
    history.replaceState(null, "", `#${turns[at].id}`);
  }
  const actions = {
    j: () => go(at + 1),
    k: () => go(at - 1),
    n: () => document.querySelector("a[rel=next]")?.click(),
    p: () => document.querySelector("a[rel=prev]")?.click(),
    s: () => { const seen = turns[Math.max(at, 0)]?.querySelector("details"); if (seen) seen.open = !seen.open; },
    c: () => {
      const choices = [...document.querySelectorAll("#color input")];
      if (choices.length) choices[(choices.findIndex((one) => one.checked) + 1) % choices.length].checked = true;
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input[type=search], select, textarea")) return;
    actions[event.key]?.();
  });
}

document.addEventListener("DOMContentLoaded", () => { curves(); keys(); });
