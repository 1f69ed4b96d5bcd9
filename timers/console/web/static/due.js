// Counts timers page by page with the API, and colours the cells while counts arrive.
"use strict";
(() => {
  const HEATS = 6;
  const HOTTEST = 10;
  const MOST_MINUTES = 30;
  const box = document.getElementById("due");
  const grid = box.querySelector("[data-grid]");
  const counted = box.querySelector("[data-counted]");
  const cells = new Map([...grid.querySelectorAll("td[data-from]")].map((cell) => [Number(cell.dataset.from), cell]));
  const number = (value) => value.toLocaleString("en");
  const iso = (second) => new Date(second * 1000).toISOString().replace("T", " ").replace(".000", "");

  function short(count) {
    if (count < 1000) return String(count);
    for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (count >= size) return `${(count / size).toFixed(count / size < 10 ? 1 : 0).replace(".0", "")}${unit}`;
    }
    return String(count);
  }

  // Reads all pages of counts. `take` gets the counts of each page; the result says how it ended.
  async function count(url, take, isStopped) {
    const pages = new URL(url, location.href);
    let missing = [];
    for (;;) {
      const answer = await fetch(pages, { headers: { Accept: "application/json" } }).catch(() => null);
      if (!answer) return { ended: "the console does not answer" };
      if (answer.headers.has("Retry-After")) {
        await new Promise((resolve) => setTimeout(resolve, 1000 * Number(answer.headers.get("Retry-After"))));
        continue;
      }
      const body = await answer.json();
      if (!answer.ok) return { ended: timersPrintable(body.detail) };
      take(body.counts);
      missing = body.missing.length ? body.missing : missing;
      if (isStopped()) return { ended: "stopped" };
      if (body.next === null) return { ended: "", missing };
      pages.searchParams.set("cursor", body.next);
    }
  }

  // ---- the cells ---------------------------------------------------------------------------------------------------
  const counts = new Map();
  let stopped = false;

  // The hottest cell: rounding can make its quotient larger than 1.
  function colour() {
    const most = Math.log(1 + Math.max(1, ...counts.values()));
    for (const [second, cell] of cells) {
      const value = counts.get(second) || 0;
      const link = cell.firstElementChild;
      cell.className = value ? `heat-${Math.min(HEATS, Math.max(1, Math.ceil(HEATS * Math.log(1 + value) / most)))}` : "";
      const text = value ? short(value) : "";
      if (link.textContent !== text) link.textContent = text;
      link.setAttribute("aria-label", `${link.dataset.name}, ${number(value)} timers`);
      link.title = `${link.dataset.name}: ${number(value)} timers`;
    }
  }

  const total = () => [...counts.values()].reduce((sum, each) => sum + each, 0);

  async function fill() {
    const { ended, missing } = await count(box.dataset.count, (page) => {
      for (const { from, timers } of page) counts.set(from, (counts.get(from) || 0) + timers);
      colour();
      counted.textContent = `Counted ${number(total())} timers so far …`;
    }, () => stopped);
    colour();
    box.querySelector("[data-stop]").hidden = true;
    counted.textContent = ended ? `${number(total())} timers, not all: ${ended}.` : missing.length
      ? `${number(total())} timers, not all: ${number(missing.length)} partitions did not answer, such as ${timersPrintable(`${missing[0].partition} (${missing[0].reason})`)}.`
      : `${number(total())} timers${box.dataset.pending ? ` of ${number(Number(box.dataset.pending))} pending` : ""}.`;
  }

  box.querySelector("[data-stop]").addEventListener("click", () => { stopped = true; });

  // ---- arrow keys: the grid is one stop of the Tab key --------------------------------------------------------------
  const links = [...grid.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td a")]);
  let at = [0, 0];
  links[0][0].tabIndex = 0;

  function move(row, column) {
    links[at[0]][at[1]].tabIndex = -1;
    at = [Math.min(Math.max(row, 0), links.length - 1), Math.min(Math.max(column, 0), links[0].length - 1)];
    links[at[0]][at[1]].tabIndex = 0;
    links[at[0]][at[1]].focus();
  }

  grid.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -99], End: [0, 99] };
    const step = steps[event.key];
    if (!step || event.target.closest("th")) return;
    event.preventDefault();
    move(at[0] + step[0], at[1] + step[1]);
  });
  grid.addEventListener("focusin", (event) => {
    const row = links.findIndex((each) => each.includes(event.target));
    if (row >= 0) at = [row, links[row].indexOf(event.target)];
    if (event.target.dataset.name) box.querySelector("[data-cell]").textContent = event.target.getAttribute("aria-label");
  });
  grid.addEventListener("pointerover", (event) => {
    const link = event.target.closest?.("td")?.firstElementChild;
    if (link?.dataset.name) box.querySelector("[data-cell]").textContent = link.getAttribute("aria-label");
  });

  // ---- hot seconds -------------------------------------------------------------------------------------------------
  const hot = document.querySelector("[data-hot]");
  const hotState = document.querySelector("[data-hot-state]");
  const rate = document.getElementById("u-rate");
  let hottest = [];

  function takes(timers) {
    const seconds = timers / Math.max(1, Number(rate.value) || 1);
    return seconds < 1 ? `${Math.max(1, Math.round(seconds * 1000))} ms` : `${seconds.toFixed(1)} s`;
  }

  function showHottest() {
    const rows = hottest.map(([second, timers]) => {
      const row = document.createElement("tr");
      const link = document.createElement("a");
      const list = new URL(box.dataset.timers, location.href);
      list.searchParams.set("from", second);
      list.searchParams.set("to", second + 1);
      link.href = list;
      const time = document.createElement("time");
      time.dateTime = time.textContent = iso(second);
      link.append(time);
      row.insertCell().append(link);
      for (const text of [number(timers), takes(timers)]) {
        const cell = row.insertCell();
        cell.className = "number";
        cell.textContent = text;
      }
      return row;
    });
    hot.querySelector("tbody").replaceChildren(...rows);
    hot.hidden = rows.length === 0;
  }

  async function countAll(url) {
    const found = new Map();
    const { ended } = await count(url, (page) => {
      for (const { from, timers } of page) found.set(from, (found.get(from) || 0) + timers);
    }, () => false);
    return { found, ended };
  }

  const byCount = (one, other) => other[1] - one[1];

  // A hot second is in a minute with many timers. So the seconds are counted only of the minutes with the most timers, until no
  // other minute has more timers than the coldest second that is shown.
  document.querySelector("[data-find]").addEventListener("click", async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    hottest = [];
    hotState.textContent = "Counting the minutes …";
    let { found: minutes, ended } = await countAll(box.dataset.minutes);
    const ordered = [...minutes].sort(byCount);
    const coldest = () => (hottest.length < HOTTEST ? 0 : hottest[HOTTEST - 1][1]);
    let looked = 0;
    for (const [from, timers] of ordered) {
      if (ended || timers <= coldest() || looked === MOST_MINUTES) break;
      const url = new URL(box.dataset.seconds, location.href);
      url.searchParams.set("from", Math.max(from, Number(url.searchParams.get("from"))));
      url.searchParams.set("to", Math.min(from + 60, Number(url.searchParams.get("to"))));
      const seconds = await countAll(url);
      ended = seconds.ended;
      hottest = [...hottest, ...seconds.found].sort(byCount).slice(0, HOTTEST);
      looked += 1;
      hotState.textContent = `Counted the seconds of ${number(looked)} minutes so far …`;
      showHottest();
    }
    const left = ordered[looked]?.[1] || 0;
    hotState.textContent = ended ? `Not all were counted: ${ended}.`
      : left > coldest() ? `Counted the seconds of the ${number(looked)} minutes with the most timers. No other minute has more than ${number(left)}.`
      : "These are the hottest.";
    showHottest();
    button.disabled = false;
  });
  rate.addEventListener("input", showHottest);

  colour();
  fill();
})();
