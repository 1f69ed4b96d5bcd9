// Runs before the first paint, so that a page does not flash in the other colours.
document.documentElement.dataset.theme = localStorage.getItem("timers-theme") || "auto";
