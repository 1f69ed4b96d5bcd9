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

  const WHOLE = Number(document.documentElement.dataset.whole);
  const broken = (text) => text.split(/(?<=\w[-_./:])(?=\w)/).flatMap((part, place) => (place ? [document.createElement("wbr"), part] : [part]));
  const whole = (text) => Object.assign(document.createElement("span"), { className: "whole", textContent: text });

  // A name for a cell of a table, as the filter `name` of the pages makes it: short ones, and short words of long ones, stay whole.
  window.timersName = (text) => {
    const safe = timersPrintable(text);
    if (safe.length <= WHOLE) return whole(safe);
    const made = document.createElement("span");
    made.append(...safe.split(" ").flatMap((part, place) => [place ? " " : "", ...(part.length <= WHOLE ? [whole(part)] : broken(part))]));
    return made;
  };
})();
