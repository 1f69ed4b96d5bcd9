// Makes text of others safe to show, as timers/wire/printable.py does: its rule is in an attribute of each page.
"use strict";
(() => {
  const UNSAFE = new RegExp(document.documentElement.dataset.unsafe, "gu");
  const NAMES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

  function escaped(found) {
    const code = found.codePointAt(0);
    const isByte = code >= 0xdc80 && code <= 0xdcff;
    const digits = (isByte ? code - 0xdc00 : code).toString(16);
    return NAMES[found] ?? (digits.length > 2 ? `\\u${digits.padStart(4, "0")}` : `\\x${digits.padStart(2, "0")}`);
  }

  window.timersPrintable = (text) => String(text).replace(UNSAFE, escaped);

  // A name for a cell of a table, as the filter `name` of the pages makes it: short ones stay whole.
  window.timersName = (text) => {
    const safe = timersPrintable(text);
    const made = document.createElement("span");
    if (safe.length <= Number(document.documentElement.dataset.whole)) made.className = "whole";
    made.append(...(made.className ? [safe] : safe.split(/(?<=\w[-_./:])(?=\w)/).flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part]))));
    return made;
  };
})();
