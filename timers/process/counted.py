"""How numbers, with what they count or measure, are written for people."""

from __future__ import annotations

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_BYTES = 1024


def counted(number: int, what: str) -> str:
    """``1 timer``, ``2 timers``, ``1,000 timers``.

    Args:
        what: one of them, whose plural ends in s.
    """
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: int) -> str:
    """Whole seconds as options take them: ``10m``, ``1h30m``, ``9999d``."""
    parts = []
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")):
        whole, seconds = divmod(seconds, unit_s)
        if whole:
            parts.append(f"{whole}{name}")
    return "".join(parts) or "0s"


def pace(number: int, seconds: int) -> str:
    """How fast so many are sent evenly over some seconds: ``10 a second``, ``1 in 12 s``."""
    if 0 < number < seconds:
        return f"1 in {span(seconds / number)}"
    return per_second(number / seconds).replace("/s", " a second")


def per_second(rate: float) -> str:
    """``1,200/s``, ``3.1/s``, ``0.02/s``: a rate below 10 has two digits, so that a slow one is not shown as 0."""
    return f"{rate:,.0f}/s" if rate >= 10 or not rate else f"{float(f'{rate:.2g}'):.12g}/s"


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
