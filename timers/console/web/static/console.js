// What the pages do by themselves: relative times, live parts, dialogs, the colours. It needs no other file.
"use strict";
(() => {
  const POLL_MS = 1000;
  const SILENT_MS = 3000;
  const STILL_MS = 1000;
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

  // ---- times: those of the console, not of this machine ------------------------------------------------------------
  const ahead_s = () => Date.now() / 1000 - skew_s;
  const skew_s = Date.now() / 1000 - Number(document.body.dataset.now);
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

  function ago(second, now_s) {
    const seconds = second - Math.floor(now_s);
    if (seconds === 0) return "now";
    let left = Math.abs(seconds);
    const parts = [];
    for (const [unit_s, name] of UNITS) {
      const whole = Math.floor(left / unit_s);
      left -= whole * unit_s;
      if (whole) parts.push(`${whole} ${name}`);
    }
    const shown = parts.slice(0, 2).join(" ");
    return seconds > 0 ? `in ${shown}` : `${shown} ago`;
  }

  // The time in the zone of this browser, beside a time in UTC; without the day if that is the same.
  function local(iso) {
    const at = new Date(iso);
    const there = at.toLocaleString("sv-SE", { timeZoneName: "shortOffset" }).replace("GMT", "UTC").replace("−", "-");
    return there.startsWith(iso.slice(0, 10)) ? there.slice(11) : there;
  }

  function tellTimes() {
    const now_s = ahead_s();
    const zone = new Date().getTimezoneOffset() ? `; here it is ${local(new Date().toISOString()).split(" ").pop()}` : "";
    for (const each of $$("[data-zone]")) if (each.textContent !== zone) each.textContent = zone;
    for (const each of $$("time[datetime]:not([data-told])")) {
      each.dataset.told = "";
      if (!new Date(each.dateTime).getTimezoneOffset()) continue;
      const beside = document.createElement("span");
      beside.className = "rel";
      beside.textContent = local(each.dateTime);
      (each.closest("a") ?? each).after(" ", beside);
    }
    for (const each of $$(".rel[data-at]")) {
      const text = ago(Number(each.dataset.at), now_s);
      if (each.textContent !== text) each.textContent = text;
    }
  }

  // ---- live parts --------------------------------------------------------------------------------------------------
  // A part is replaced only while the pointer and the focus are outside of it, and nothing moves; and what is under the
  // pointer, or has the focus, stays where it is when a part above it changes its size. So a refresh never moves what is
  // about to be clicked. Dialogs are outside of all live parts.
  let movedAt = 0;
  let pointer = null;
  let paused = false;
  for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "scroll"]) {
    addEventListener(kind, (event) => {
      movedAt = Date.now();
      if (event.clientX !== undefined) pointer = event;
    }, { passive: true, capture: true });
  }
  document.documentElement.addEventListener("pointerleave", () => { pointer = null; });

  function isInUse(part) {
    if ($$("input", part).some((each) => each.value !== each.defaultValue)) return true;  // something was typed
    if (Date.now() - movedAt < STILL_MS || part.contains(document.activeElement)) return true;
    if (String(getSelection()) && part.contains(getSelection().anchorNode)) return true;
    const under = underPointer();
    return Boolean(under && part.contains(under));
  }

  function underPointer() {
    return pointer && document.elementFromPoint(pointer.clientX, pointer.clientY);
  }

  function replace(part, fresh) {
    const focused = document.activeElement === document.body ? null : document.activeElement;
    const below = underPointer() || focused;
    const top = below?.getBoundingClientRect().top;
    const height = part.getBoundingClientRect().height;
    const opened = $$("details", part).map((each) => each.open);
    const said = part.querySelector("[data-say]")?.textContent;
    part.className = fresh.className;
    part.replaceChildren(...fresh.childNodes);
    htmx.process(part);
    $$("details", part).forEach((each, place) => { each.open = opened[place] || false; });
    part.style.minHeight = "";
    const moved = below?.isConnected ? below.getBoundingClientRect().top - top : 0;
    if (moved < 0 && scrollY < -moved) part.style.minHeight = `${height}px`;  // the page cannot be scrolled so far up
    else if (moved) scrollBy(0, moved);
    const say = part.querySelector("[data-say]")?.textContent;
    if (say && say !== said) announce(say);
    part.dispatchEvent(new CustomEvent("timers:fresh", { bubbles: true }));
  }

  function announce(text) {
    const live = document.querySelector("[data-announce]");
    if (live) live.textContent = text;
  }

  function state(text) {
    for (const each of $$("[data-live-state]")) if (each.textContent !== text) each.textContent = text;
  }

  // A part that is in use is not replaced, but what it says of the timers must be true: the heading and the colour are.
  function tellState(part, level, text) {
    const say = part.querySelector("[data-say]");
    if (!say) return;
    part.className = `state ${level}`;
    if (say.textContent !== text) {
      say.textContent = text;
      announce(text);
    }
  }

  let answeredAt = Date.now();
  function watchSilence() {
    const part = document.querySelector("#state[data-live]");
    if (!part || document.hidden || Date.now() - answeredAt < SILENT_MS) return;
    const since = new Date((answeredAt / 1000 - skew_s) * 1000).toISOString().slice(0, 19).replace("T", " ");
    tellState(part, "unknown", `Since ${since}Z it is unknown whether all timers fire`);
    for (const each of $$("#tiles, #workers")) each.classList.add("old");
    state(`the last answer of the console is ${Math.round((Date.now() - answeredAt) / 1000)} s old`);
  }

  // `isAsked`: the user has changed what the parts show.
  async function refresh(isAsked) {
    const parts = $$("[data-live], [data-part]").filter((part) => part.hasAttribute("data-live") || part.querySelector("[data-soon]"));
    if (!parts.length || document.hidden) return;
    let page;
    try {
      const answer = await fetch(location.href, { headers: { "HX-Request": "true" } });
      page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const problem = page.body.querySelector(".note.red[data-problem]");
      if (!answer.ok && problem) {
        for (const part of parts) {
          if (part.querySelector("[data-soon]")) part.replaceChildren(problem.cloneNode(true));
        }
        state("the last refresh failed");
        return;
      }
    } catch {
      state("no answer from the console: the figures are old");
      return;
    }
    answeredAt = Date.now();
    for (const part of parts) {
      const fresh = page.getElementById(part.id);
      const isFirst = part.querySelector("[data-soon]") !== null;
      const say = fresh?.querySelector("[data-say]");
      if (fresh && (isFirst || isAsked || !isInUse(part))) replace(part, fresh);
      else if (say) tellState(part, fresh.className.replace("state ", ""), say.textContent);
    }
    tellTimes();
    state("live");
  }

  async function keepFresh() {
    for (;;) {
      if (!paused || document.querySelector("[data-soon]")) await refresh();
      const every_s = document.querySelector("[data-soon]") ? undefined : document.querySelector("[data-every]")?.dataset.every;
      await new Promise((resolve) => setTimeout(resolve, every_s ? 1000 * every_s : POLL_MS));
    }
  }

  // ---- clicks ------------------------------------------------------------------------------------------------------
  const THEMES = ["auto", "light", "dark"];
  const showTheme = () => { for (const each of $$("[data-theme-name]")) each.textContent = document.documentElement.dataset.theme; };

  addEventListener("click", (event) => {
    const target = event.target.closest("button");
    if (!target) return;
    if (target.dataset.open) document.getElementById(target.dataset.open).showModal();
    if ("close" in target.dataset) target.closest("dialog").close();
    if ("menu" in target.dataset) toggle(target, document.getElementById("menu"));
    if ("fold" in target.dataset) toggle(target, target.form);
    if (target.dataset.copy) {
      navigator.clipboard?.writeText(document.getElementById(target.dataset.copy).textContent);
      target.textContent = "Copied";
    }
    if ("themeSwitch" in target.dataset) {
      const root = document.documentElement;
      root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
      localStorage.setItem("timers-theme", root.dataset.theme);
      showTheme();
      dispatchEvent(new Event("timers:theme"));
    }
    if ("beginSteps" in target.dataset) runSteps(target.closest("[data-steps]"), true);
    if ("stopSteps" in target.dataset) runSteps(target.closest("[data-steps]"), false);
    if ("liveSwitch" in target.dataset) {
      paused = !paused;
      target.setAttribute("aria-pressed", String(paused));
      target.textContent = paused ? "Go on" : target.dataset.liveSwitch;
      state(paused ? "paused" : "live");
    }
  });

  function toggle(button, what) {
    button.setAttribute("aria-expanded", String(what.classList.toggle("open")));
  }

  // ---- rows that are chosen ----------------------------------------------------------------------------------------
  function tellChosen() {
    const form = document.querySelector("[data-chosen]");
    if (!form) return;
    const count = $$("[data-choose]:checked").length;
    form.hidden = !count;
    for (const each of $$("[data-chosen-count]")) each.textContent = String(count);
  }

  addEventListener("change", (event) => {
    if ("chooseAll" in event.target.dataset) for (const each of $$("[data-choose]")) each.checked = event.target.checked;
    tellChosen();
  });

  // ---- filters that are kept in this browser -----------------------------------------------------------------------
  const KEPT = `timers-filters ${location.pathname}`;

  function keptFilters() {
    try {
      const kept = JSON.parse(localStorage.getItem(KEPT));
      return Object.entries(kept ?? {}).filter(([, query]) => typeof query === "string");
    } catch {  // another program of this site has written it
      return [];
    }
  }

  function showFilters(kept = keptFilters()) {
    const box = document.querySelector("[data-saved]");
    if (!box) return;
    const given = [...new URLSearchParams(location.search)].filter(([name, value]) => value && name !== "cursor");
    const query = String(new URLSearchParams(given));
    const save = (entries) => {
      localStorage.setItem(KEPT, JSON.stringify(Object.fromEntries(entries)));
      showFilters(entries);
    };
    const make = (tag, content, more) => Object.assign(document.createElement(tag), { textContent: content, ...more });
    const links = kept.flatMap(([name, of]) => {
      const forget = make("button", "×", { type: "button", className: "quiet", ariaLabel: `Forget ${name}` });
      forget.addEventListener("click", () => save(kept.filter(([each]) => each !== name)));
      return [make("a", timersPrintable(name), { href: `?${of}` }), forget];
    });
    if (query && !kept.some(([, of]) => of === query)) {
      const form = make("form", "", { className: "inline", ariaLabel: "Keep this filter" });
      const field = make("input", "", { required: true, maxLength: 40, ariaLabel: "Name of this filter", placeholder: "name", autocomplete: "off" });
      form.append(field, make("button", "Keep this filter", { type: "submit" }));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        save([...kept.filter(([each]) => each !== field.value), [field.value, query]].slice(-50));
      });
      links.push(form);
    }
    box.replaceChildren(...links);
    box.hidden = !links.length;
  }

  // What is typed beside a choice chooses it.
  addEventListener("input", (event) => {
    const choice = event.target.type !== "radio" && event.target.closest?.(".choice")?.querySelector("input[type=radio]");
    if (choice) choice.checked = true;
  }, { capture: true });

  // ---- changes in steps --------------------------------------------------------------------------------------------
  // Each answer has the form of the next step. The buttons are outside of the answers, so they stay where they are.
  function runSteps(box, runs) {
    const begin = box.querySelector("[data-begin-steps]");
    const stop = box.querySelector("[data-stop-steps]");
    const form = box.querySelector(".steps-state form");
    const hadFocus = [begin, stop].includes(document.activeElement);
    box.dataset.runs = runs ? "1" : "";
    stop.hidden = !runs || !form;
    begin.hidden = runs || !form;
    begin.textContent = "Go on";
    const started = box.querySelector("[data-started]");
    if (started) started.hidden = !runs;
    if (hadFocus) (runs ? stop : begin).focus();
    if (runs && form && !box.querySelector(".htmx-request")) htmx.trigger(form, "begin");
  }

  // To leave the page stops the steps, so the browser asks first.
  addEventListener("beforeunload", (event) => {
    if (document.querySelector('[data-steps][data-runs="1"]')) event.preventDefault();
  });

  addEventListener("htmx:afterSettle", (event) => {
    const box = event.target.closest?.("[data-steps]");
    if (!box || !event.target.matches(".steps-state")) return;
    const hasNext = event.target.querySelector("[data-next-step]") !== null;
    runSteps(box, hasNext && box.dataset.runs === "1");
  });

  // After a step without an answer, its form stays: the same step can be tried again.
  function keepStep(target, note) {
    target.querySelector("[data-lost]")?.remove();
    note.dataset.lost = "";
    target.prepend(note);
    runSteps(target.closest("[data-steps]"), false);
  }

  function noteOf(text) {
    const note = document.createElement("p");
    note.className = "note red";
    note.setAttribute("role", "alert");
    note.textContent = text;
    return note;
  }

  addEventListener("htmx:beforeSwap", (event) => {
    const { target, xhr } = event.detail;
    if (xhr.status < 400 || !target.matches(".steps-state")) return;
    event.detail.shouldSwap = false;
    keepStep(target, noteOf(`The console answered ${xhr.status}. Go on, or load the page again.`));
  });

  addEventListener("htmx:beforeRequest", (event) => {
    const form = event.target.closest?.("[data-close-after]");
    (form?.closest("dialog") ?? form?.querySelector("dialog"))?.close();
  });
  addEventListener("htmx:sendError", (event) => {
    const target = event.detail.target;
    const note = noteOf("The console does not answer. Whether the request was carried out is not known.");
    if (target.matches(".steps-state")) keepStep(target, note);
    else target.replaceChildren(note);
  });
  addEventListener("htmx:afterSwap", (event) => {
    tellTimes();
    if (event.detail.target.querySelector("[data-changed]")) refresh(true);
  });

  for (const each of $$("[data-zone-name]")) {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if ("placeholder" in each) each.placeholder = zone;
    else each.textContent = zone;
  }
  showTheme();
  showFilters();
  tellTimes();
  setInterval(tellTimes, 1000);
  setInterval(watchSilence, 500);
  keepFresh();
})();
