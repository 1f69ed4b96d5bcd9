// What is cut, outside of the window or broken inside a word: see test_nothing_is_cut.py.
() => {
  const found = new Set();
  const name = (each) => `${each.tagName}.${each.className?.baseVal ?? each.className}: ${each.textContent.trim().slice(0, 60)}`;
  const isUnseen = (each) => {
    const head = each.closest("thead");  // on a phone it is for screen readers
    const aside = ".hidden, .skip, .u-wrap, datalist, option, dialog:not([open])";
    return (head && getComputedStyle(head).position === "absolute") || each.closest(aside) || !each.checkVisibility();
  };
  const scrolls = (each) => each.closest("[tabindex='0']") !== null;  // can be reached by the keyboard
  const linesOf = (range) => new Set([...range.getClientRects()].filter((box) => box.width).map((box) => Math.round(box.top)));
  for (const each of document.querySelectorAll("body *")) {
    if (isUnseen(each) || scrolls(each) || each.matches("input, textarea, select, svg, svg *")) continue;
    const { display, overflowX, overflowY } = getComputedStyle(each);
    const isTall = overflowY !== "visible" && each.scrollHeight > each.clientHeight + 1;
    const isWide = display !== "inline" && each.scrollWidth > each.clientWidth + 2;
    if (isTall || (isWide && (overflowX !== "visible" || each.matches("td, th, dd, button, .button, .badge, .card, .tile")))) {
      found.add(`cut: ${name(each)}`);
    }
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = texts.nextNode()); ) {
    const around = node.parentElement;
    if (!node.data.trim() || isUnseen(around) || scrolls(around) || around.closest("script, style, textarea, pre")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width && (box.right > innerWidth + 1 || box.left < -1)) found.add(`outside: ${name(around)}`);
    for (const word of node.data.matchAll(/[^\s\-_./:–…]{2,24}/g)) {
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const isPart = /[^\s\-_./:–…]/.test((node.data[word.index - 1] ?? " ") + (node.data[word.index + word[0].length] ?? " "));
      if (!isPart && linesOf(range).size > 1) found.add(`broken: ${word[0]} in ${name(around)}`);
    }
  }
  for (const each of document.querySelectorAll(".whole")) {
    const range = document.createRange();
    range.selectNodeContents(each);
    if (!isUnseen(each) && linesOf(range).size > 1) found.add(`broken: ${name(each)}`);
  }
  return [...found];
}
