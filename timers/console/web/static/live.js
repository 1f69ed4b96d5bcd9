// Shows firings as they happen, from the one stream of this page. While the pointer or the focus is in the list, or while it
// is paused, rows are kept back: what is about to be clicked stays where it is.
"use strict";
(() => {
  const SHOWN = 100;
  const SPAN_S = 120;
  const RECENT_S = 10;
  const HIDDEN_MS = 60000;
  const LABELS = ["Fired (UTC)", "Lag", "Timer", "Topic", "Key"];
  const box = document.getElementById("stream");
  const ring = box.querySelector(".ring");
  const rows = ring.querySelector("tbody");
  const stateText = document.querySelector("[data-stream-state]");
  const figures = Object.fromEntries([...box.querySelectorAll("[data-figure]")].map((each) => [each.dataset.figure, each]));
  const counts = { fired: 0, skipped: 0 };
  const seconds = new Map();
  let source = null;
  let lastId = "";
  let paused = false;
  let inside = false;
  let kept = [];

  function say(text) {
    const safe = timersPrintable(text);
    if (stateText.textContent !== safe) stateText.textContent = safe;
  }

  const number = (value) => value.toLocaleString("en");
  const lag = (ms) => (ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`);
  const text = (value) => (value === null ? "–" : typeof value === "object" ? `base64 ${value.base64}` : String(value));

  function note(count, worst_ms) {
    const second = Math.floor(Date.now() / 1000);
    const before = seconds.get(second) || { count: 0, worst: 0 };
    seconds.set(second, { count: before.count + count, worst: Math.max(before.worst, worst_ms) });
    for (const each of seconds.keys()) if (each < second - SPAN_S) seconds.delete(each);
    counts.fired += count;
  }

  function cell(row, content, kind) {
    const made = row.insertCell();
    made.setAttribute("role", "cell");
    made.dataset.label = LABELS[made.cellIndex];
    if (kind) made.className = kind;
    made.append(typeof content === "string" ? timersName(content) : content);
  }

  function rowOf(fired) {
    const row = document.createElement("tr");
    row.setAttribute("role", "row");
    const time = document.createElement("time");
    const at = new Date(fired.timestamp_ms);  // of any producer: it may be no date of JavaScript
    time.dateTime = Number.isNaN(at.getTime()) ? "" : at.toISOString();
    time.textContent = time.dateTime.replace("T", " ") || `${fired.timestamp_ms} ms`;
    cell(row, time, "when");
    cell(row, lag(fired.lag_ms), "number");
    const id = text(fired.timer_id);
    const link = document.createElement("a");
    link.className = "id";
    link.append(timersName(id));
    link.href = `${box.dataset.timer}?id=${encodeURIComponent(typeof fired.timer_id === "string" ? id : text(fired.source))}`;
    cell(row, link, "break");
    cell(row, fired.topic, "break");
    cell(row, text(fired.key), "break");
    return row;
  }

  const isHeld = () => paused || inside || ring.contains(document.activeElement) && document.activeElement !== ring;

  function show() {
    const held = isHeld();
    if (kept.length && !held) {
      const newer = kept.reverse();
      kept = [];
      rows.prepend(...newer.map(rowOf));
      while (rows.rows.length > SHOWN) rows.deleteRow(-1);
      ring.querySelector("[data-none]").hidden = true;
    }
    box.querySelector("[data-held]").textContent = kept.length && held ? `${number(kept.length)}${kept.length >= SHOWN ? " or more" : ""} newer ones wait` : "";
    const now = Math.floor(Date.now() / 1000);
    const recent = [...seconds].filter(([second]) => second >= now - RECENT_S && second < now);
    figures.fired.textContent = number(counts.fired);
    figures.skipped.textContent = number(counts.skipped);
    figures.rate.textContent = number(Math.round(recent.reduce((sum, [, each]) => sum + each.count, 0) / RECENT_S * 10) / 10);
    figures.worst.textContent = recent.length ? lag(Math.max(...recent.map(([, each]) => each.worst))) : "–";
  }

  function drawLags() {
    const chart = box.querySelector("[data-live-chart]");
    const now = Math.floor(Date.now() / 1000);
    const at = Array.from({ length: SPAN_S }, (_, index) => now - SPAN_S + index);
    chart.dataset.chart = JSON.stringify({ kind: "live", columns: [at, at.map((second) => seconds.get(second)?.worst ?? null)] });
    timersCharts.draw(chart);
  }

  // ---- the stream --------------------------------------------------------------------------------------------------
  function open() {
    const url = new URL(box.dataset.stream, location.href);
    if (lastId) url.searchParams.set("after", lastId);
    source = new EventSource(url);
    source.onopen = () => say("live");
    const on = (kind, act) => source.addEventListener(kind, (event) => {
      lastId = event.lastEventId || lastId;
      act(JSON.parse(event.data));
    });
    on("began", () => {});
    on("fired", (fired) => {
      note(1, fired.lag_ms);
      kept.push(fired);
      if (kept.length > SHOWN) kept.shift();
    });
    on("skipped", (told) => { note(told.count, told.worst_ms); counts.skipped += told.count; });
    on("dropped", (told) => { note(told.count, 0); counts.skipped += told.count; });
    on("ended", (told) => { say(`ended: ${told.reason}`); close(); });
    source.onerror = async () => {
      if (source && source.readyState !== EventSource.CLOSED) return say("connecting again …");
      close();
      const answer = await fetch(url, { headers: { Accept: "application/json" } }).catch(() => null);
      const problem = answer && !answer.ok ? await answer.json().catch(() => null) : null;
      answer?.body?.cancel().catch(() => null);
      if (problem?.code === "cursor-invalid") lastId = "";  // a topic was made anew: go on with what comes from now on
      else if (problem && answer.status !== 503) return say(problem.detail);
      say(problem ? problem.detail : "no answer from the console; trying again …");
      setTimeout(() => { if (!source) open(); }, 3000);
    };
  }

  function close() {
    source?.close();
    source = null;
  }

  let hiddenAt = null;
  document.addEventListener("visibilitychange", () => {
    // A hidden page gives its connection back after a minute, since browsers have few for a host; it goes on without a gap.
    clearTimeout(hiddenAt);
    if (document.hidden) hiddenAt = setTimeout(close, HIDDEN_MS);
    else if (!source) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted && !source) open(); });

  for (const [kind, value] of [["pointerenter", true], ["pointerleave", false]]) ring.addEventListener(kind, () => { inside = value; });
  document.querySelector("[data-stream-switch]").addEventListener("click", (event) => {
    paused = !paused;
    event.currentTarget.setAttribute("aria-pressed", String(paused));
    event.currentTarget.textContent = paused ? "Go on" : "Pause";
  });

  open();
  show();
  drawLags();
  setInterval(show, 250);
  setInterval(() => { if (!document.hidden) drawLags(); }, 1000);
})();
