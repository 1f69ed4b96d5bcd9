// Makes text of others safe to show, as timers/wire/printable.py does: its rule is in an attribute of each page.
"use strict";
window.timersPrintable = (() => {
  const UNSAFE = new RegExp(document.documentElement.dataset.unsafe, "gu");
  const NAMES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

  function escaped(found) {
    const code = found.codePointAt(0);
    const isByte = code >= 0xdc80 && code <= 0xdcff;
    const digits = (isByte ? code - 0xdc00 : code).toString(16);
    return NAMES[found] ?? (digits.length > 2 ? `\\u${digits.padStart(4, "0")}` : `\\x${digits.padStart(2, "0")}`);
  }

  return (text) => String(text).replace(UNSAFE, escaped);
})();
