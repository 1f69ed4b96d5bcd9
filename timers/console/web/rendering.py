"""Renders the templates. All that they show is escaped, and :func:`timers.wire.printable.printable`: any sender chooses
ids, keys, topics and values."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from timers.console.web import assets
from timers.wire.printable import UNSAFE, printable, printable_in_html
from timers.wire.query import format_due

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_BYTES = 1024


def environment(base_path: str) -> Environment:
    """The templates, with what all of them use."""
    found = Environment(
        loader=PackageLoader("timers.console.web"),
        autoescape=True,
        finalize=printable_in_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "iso": iso,
        "field_time": field_time,
        "count": count,
        "bytes": size,
        "span": span,
        "data": data,
        "ranges": ranges,
        "lines": lines,
        "exact": escape,
        "unseen": unseen,
    }
    found.globals |= {"base": base_path, "asset": lambda name: base_path + assets.url(name), "link": link, "ago": ago}
    found.globals["unsafe"] = UNSAFE  # the scripts of pages follow the same rule
    return found


def lines(text: str) -> Markup:
    """Text for an element that shows its lines and tabs."""
    return escape(_safe_lines(text))


def unseen(text: str) -> str:
    """Text for people, if it has characters that a field of a form does not show; otherwise nothing."""
    safe = _safe_lines(text)
    return "" if safe == text else safe


def _safe_lines(text: str) -> str:
    return re.sub(r"[^\n\t]+", lambda found: printable(found[0]), text)


def link(path: str, **parameters: Any) -> str:
    """A path with the parameters that are not empty."""
    given = {name.rstrip("_"): value for name, value in parameters.items() if value not in (None, "", [])}
    return path + (f"?{urlencode(given, doseq=True, errors='surrogateescape')}" if given else "")


def iso(second: float) -> str:
    """An epoch second for people, in UTC."""
    return format_due(int(second)).replace("T", " ")


def field_time(second: float) -> str:
    """An epoch second as a person would write it in a filter, in UTC."""
    return iso(second).removesuffix("Z").removesuffix(":00")


def ranges(numbers: Sequence[int]) -> str:
    """Numbers in their order, with neighbours as a range: ``0–2, 5``."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ", ".join("–".join(map(str, each)) for each in found)


def count(number: float | None) -> str:
    """A number with separators; a dash if it is not known."""
    return "–" if number is None else f"{number:,.0f}"


def size(number: float | None) -> str:
    """Bytes for people."""
    if number is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < _BYTES or unit == "TiB":
            break
        number /= _BYTES
    return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"


def span(seconds: float | None) -> str:
    """A length of time for people: two units, or milliseconds."""
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{seconds * 1000:,.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = int(seconds), []
    for unit_s, name in _UNITS:
        whole, left = divmod(left, unit_s)
        if whole:
            parts.append(f"{whole:,} {name}")
    return " ".join(parts[:2])


def ago(second: float, now_s: float) -> str:
    """A time relative to now. ``console.js`` has the same words."""
    seconds = int(second) - int(now_s)
    if seconds == 0:
        return "now"
    shown = span(float(max(1, abs(seconds)))).replace(".0", "")
    return f"in {shown}" if seconds > 0 else f"{shown} ago"


def data(value: Any) -> str:
    """A key as the API shows it: text, bytes as ``{"base64": ...}``, or null."""
    if value is None:
        return "–"
    if isinstance(value, dict):
        return "0x" + base64.b64decode(value["base64"]).hex()
    return str(value)
