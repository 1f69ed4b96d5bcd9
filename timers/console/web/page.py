"""A request for a page, and how its answer is made."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from timers.client.times import parse_ahead
from timers.console.call import Call, Reply, whole_body
from timers.console.figures import SILENT_AFTER_S
from timers.console.problems import Problem
from timers.console.routes import OPERATOR, PUBLIC, READER, Route
from timers.console.web.board import FIGURES_CURRENT_S, FIGURES_REUSED_S, Board, Figures
from timers.core.printable import UNSAFE_CHARACTERS, printable, quoted, utc_text
from timers.errors import InvalidTimerError
from timers.process.counted import count, pace, size, span
from timers.process.http.html_templates import html_templates
from timers.wire.query import given_in

_HERE = Path(__file__).parent


@cache
def environment(base_path: str) -> Environment:
    """The templates, with what all of them use. A process reads and compiles each once."""
    found = html_templates("timers.console.web")
    found.filters |= {
        "iso": iso,
        "field_time": field_time,
        "count": count,
        "bytes": size,
        "span": span,
        "pace": pace,
        "data": data,
        "ranges": ranges,
        "lines": lines,
        "exact": escape,
        "unseen": unseen,
        "section_links": lambda text: section_links(text, base_path),
        "name": name_of,
        "linked": lambda text: linked(text, base_path),
    }
    found.globals |= {"base": base_path, "asset": lambda name: base_path + url(name), "link": link, "ago": ago}
    found.globals |= {"unsafe": UNSAFE_CHARACTERS, "whole": WHOLE}  # the scripts of pages follow the same rules
    return found


def lines(text: str) -> Markup:
    """Text for an element that shows its lines and tabs."""
    return escape(_safe_lines(text))


@cache
def runbooks() -> dict[str, tuple[str, str]]:
    """Name of a section of docs/operations.md, as in its links -> its heading and its text."""
    text = (_HERE / "operations.md").read_text("utf-8")
    found = {}
    for heading in re.finditer(r"^(##+) (.+)$", text, re.MULTILINE):
        following = re.compile(rf"^#{{2,{len(heading[1])}}} ", re.MULTILINE).search(text, heading.end())
        name = re.sub(r"[^\w -]", "", heading[2].lower()).replace(" ", "-")
        found[name] = heading[2], text[heading.end() : following.start() if following else None].strip()
    return found


class Meaning(NamedTuple):
    """Why a request became a dead letter, and what to do about it."""

    why: str
    way_out: str


@cache
def meanings() -> dict[str, Meaning]:
    """Code of dead letters -> its meaning: the tables of docs/bad-input.md, as plain text."""
    text = (_HERE / "bad-input.md").read_text("utf-8")
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"; see \[[^]]*\]\([^)]*\)", "", text))
    row = r"^\| `([a-z-]+)` \|(?: (?:on arrival|when due|after a loss) \|)? (.+) \| (.+) \|$"
    found = re.findall(row, plain, re.MULTILINE)
    return {code: Meaning(why.replace("`", ""), way_out.replace("`", "")) for code, why, way_out in found}


@cache
def _markdown() -> MarkdownIt:
    """What makes HTML of our pages. Names in code break behind their signs, as in tables."""
    made = MarkdownIt("commonmark", {"html": False}).enable("table")
    made.add_render_rule("code_inline", lambda _, tokens, at, *more: f"<code>{_breaking(tokens[at].content)}</code>")
    return made


def section_links(text: str, base_path: str) -> Markup:
    """A section as HTML, with links to the pages of other sections. A link to another page is only its text."""
    text = re.sub(r"\[([^\]]+)\]\([^#)][^)]*\)", r"\1", text)
    text = re.sub(r"\]\(#([\w-]+)\)", rf"]({base_path}/runbook?name=\1)", text)
    tokens = (markdown := _markdown()).parse(text)
    headings = [token for token in tokens if token.type in ("heading_open", "heading_close")]
    first = min((int(token.tag[1:]) for token in headings), default=2)
    for token in headings:  # below the heading of the page, which is h1, comes h2
        token.tag = f"h{int(token.tag[1:]) - first + 2}"
    return Markup(markdown.renderer.render(tokens, markdown.options, {}))


WHOLE = 24
"""Characters of a name that is never broken."""


def name_of(text: str) -> Markup:
    """A topic, a key or an id in a table: a short one stays whole, long words break behind their signs first."""
    safe = printable(str(text))
    parts = [safe] if len(safe) <= WHOLE else safe.split(" ")
    whole = Markup('<span class="whole">{}</span>').format
    return Markup(" ").join(whole(part) if len(part) <= WHOLE else _breaking(part) for part in parts)


def _breaking(text: str) -> Markup:
    return Markup("<wbr>").join(re.split(r"(?<=\w[-_./:])(?=\w)", text))


def linked(text: str, base_path: str) -> Markup:
    """A sentence of others, in which a reference to a section of docs/operations.md is a link to its page."""

    def target(found: re.Match[str]) -> str:
        if found[1] not in runbooks():
            return found[0]
        return f'<a href="{base_path}/runbook?name={found[1]}">What to do: {escape(runbooks()[found[1]][0])}</a>'

    return Markup(re.sub(r"docs/operations\.md#([\w-]+)", target, str(escape(printable(str(text))))))


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
    """An epoch second for people, in UTC. A producer can give its records any time."""
    text = utc_text(second)
    return text.replace("T", " ") if text.endswith("Z") else "after 9999" if second > 0 else "before 1"


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


FORMS = "now, 1h (from now), -1h (ago), 12:00 or tomorrow 09:00 (UTC), 2030-01-31 12:00 (UTC), or epoch seconds"

_DAY_S = 86_400
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}


def moment(name: str, text: str, now_s: float, *, is_past: bool = False) -> int:
    """The epoch second that a text names.

    Args:
        is_past: a time without a day is the last one: at 03:00, 12:00 is yesterday's. Without this it is today's.
    """
    text = text.strip()
    try:
        if text.lower() == "now":
            return int(now_s)
        found = re.fullmatch(r"(?:(yesterday|today|tomorrow)\b ?)?(\d{1,2}:\d{2}(?::\d{2})?)?", text.lower(), re.ASCII)
        if text and found:
            day, time = found[1], (found[2] or "00:00").zfill(5)
            text = f"{utc_text(int(now_s) + _DAYS[day or 'today'] * _DAY_S)[:10]} {time}"
            second = parse_ahead(_instant(text), now_s)
            return second - _DAY_S if is_past and day is None and second > now_s else second
        return parse_ahead(_instant(text.removeprefix("+").replace(" ", "") if text[:1] == "+" else text), now_s)
    except InvalidTimerError:
        raise Problem("parameter-invalid", f"{name}={quoted(text[:100])} is no time: write {FORMS}") from None


def selected(
    given: Mapping[str, str], texts: Iterable[str], times: Iterable[str], now_s: float, *, is_past: bool = False
) -> dict[str, Any]:
    """The filter of a list: its times as epoch seconds, so that all pages of a list have the same."""
    found: dict[str, Any] = {name: given[name] for name in texts if given.get(name)}
    return found | {name: moment(name, given[name], now_s, is_past=is_past) for name in times if given.get(name)}


def _instant(text: str) -> str:
    """A time of a day in UTC as RFC 3339; other texts unchanged."""
    found = re.fullmatch(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2}:\d{2})(:\d{2})?)?Z?", text, re.ASCII)
    return f"{found[1]}T{found[2] or '00:00'}{found[3] or ':00'}Z" if found else text


PATH = "/static"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_HASH_DIGITS = 12
_KEEP = "public, max-age=31536000, immutable"
"""The URL changes with the content, so browsers need not ask again."""

STATIC_ROUTE = Route(PATH + "/{hash:[0-9a-f]+}/{name:.+}", "page:static", role=PUBLIC, is_foreign=True)


@cache
def _files() -> dict[str, bytes]:
    """Name below ``static`` -> content."""
    paths = (path for path in (_HERE / "static").rglob("*") if path.suffix[1:] in _TYPES)
    return {path.relative_to(_HERE / "static").as_posix(): path.read_bytes() for path in paths}


@cache
def url(name: str) -> str:
    """The URL of a file, below the base path."""
    digits = hashlib.sha256(_files()[name]).hexdigest()[:_HASH_DIGITS]
    return f"{PATH}/{digits}/{name}"


async def serve(call: Call) -> Reply:
    name = call.request.match_info["name"]
    content = _files().get(name)
    if content is None:
        raise Problem("not-found", f"there is no file {quoted(name)}")
    kind = _TYPES[name.rpartition(".")[2]]
    return Reply(content, headers={"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": _KEEP})


_T = TypeVar("_T")

HTML, FORM = "text/html", "application/x-www-form-urlencoded"
_MOST_FIELDS = 200
FRAGMENT_HEADER = "HX-Request"
"""Header of requests for a part of a page. Pages of other sites cannot send it without asking the console first."""

CSP_HEADER = "Content-Security-Policy"

PAGE_HEADERS = {
    "Content-Type": f"{HTML}; charset=utf-8",
    CSP_HEADER: ("default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"),
    "Vary": FRAGMENT_HEADER,
}


FIRST_PAINT_S = 0.15
"""A page waits this time for an answer. Then it is shown without this part, and its script asks for the part again."""

PART_S = 20.0


Perform: TypeAlias = Callable[..., Awaitable[Any]]
"""Asks a route of the API on behalf of the user of a page; see :meth:`timers.console.web.server.Server.perform`."""


class Page:
    """A request for a page.

    Attributes:
        board: what the workers say.
        given: the parameters that are not empty, in their order.
    """

    def __init__(self, call: Call, perform: Perform, render: Callable[..., bytes], board: Board) -> None:
        self._perform = perform
        self._render = render
        self.call = call
        self.board = board
        self.now_s = call.console.now_s()
        self.settings = call.console.settings
        self.given = {name: text.strip() for name, text in given_in(call.request.raw_path) if text.strip()}

    @property
    def is_fragment(self) -> bool:
        """Whether the browser asks for a part of a page."""
        return FRAGMENT_HEADER in self.call.request.headers

    @property
    def may_write(self) -> bool:
        """Whether the user may change something here. The API decides again when the change is made."""
        return self.settings.console_write and self.call.user.may(OPERATOR)

    async def api(self, name: str, body: Mapping[str, Any] | None = None, /, **parameters: Any) -> Any:
        """The JSON of a route of the API. Parameters that are None are left out."""
        pairs: list[tuple[str, str]] = []
        for key, value in parameters.items():
            texts = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
            pairs += [(key.rstrip("_"), str(text)) for text in texts]
        return await self._perform(self.call, name, pairs, body)

    def needed(self, name: str, what: str) -> str:
        """A parameter that the page needs, as it was given: spaces count."""
        text = dict(given_in(self.call.request.raw_path)).get(name, "")
        if not text:
            raise Problem("parameter-invalid", f"the parameter {name!r} is missing: {what}")
        return text

    @property
    def base_url(self) -> str:
        """The URL of the console, as the user reaches it."""
        request = self.call.request
        return self.settings.console_url or f"{request.scheme}://{request.host}{self.call.base_path}"

    @property
    def waits(self) -> bool:
        """Whether this request waits for what workers and brokers say."""
        return self.is_fragment or "wait" in self.given

    @property
    def patience_s(self) -> float:
        """How long it waits."""
        return PART_S if self.waits else FIRST_PAINT_S

    async def figures(self) -> Figures | None:
        """The newest figures of the workers; None if there are none yet. The script of the page asks for newer ones."""
        good_s = FIGURES_REUSED_S if self.waits else FIGURES_CURRENT_S
        return await self.board.look(self.api, self.call.console.now_s, min(self.patience_s, SILENT_AFTER_S), good_s)

    async def soon(
        self, answer: Awaitable[_T], most_s: float = PART_S, silent: str = "brokers-unreachable"
    ) -> _T | None:
        """The answer of workers or brokers; None if it does not come before the page must be shown.

        Args:
            most_s: how long a part of a page waits for it.
            silent: the code of the problem if it does not come: who has not answered.

        Raises:
            Problem: the part of the page that waits for it has waited long enough.
        """
        try:
            async with asyncio.timeout(min(self.patience_s, most_s)):
                return await answer
        except TimeoutError:
            if self.waits:
                raise Problem(silent, f"no answer came within {most_s:.0f} s") from None
            return None

    async def form(self) -> dict[str, str]:
        """The fields of a form, as :meth:`fields`; of several with one name, the last."""
        return dict(await self.fields())

    async def fields(self) -> list[tuple[str, str]]:
        """The fields of a form, without a check. What another site may have sent, or what is no form, is a problem."""
        if not self.is_fragment:
            raise Problem(
                "cross-site", f"forms are sent by the script of the console, with the header {FRAGMENT_HEADER}"
            )
        body = await whole_body(self.call.request)
        if body and self.call.request.content_type != FORM:
            raise Problem("parameter-invalid", f"a form is of type {FORM}, not {self.call.request.content_type}")
        try:
            return parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
        except ValueError as error:
            raise Problem("parameter-invalid", f"the form is not {FORM} in UTF-8: {error}") from None

    def show(self, template: str, status: int = 200, **context: Any) -> Reply:
        return Reply(self._render(template, self, **context), status, PAGE_HEADERS)


def kept_number(text: str | None) -> int:
    """A number that a form keeps from step to step; 0 for another text. It is only shown."""
    return int(text) if text and text.isdecimal() and len(text) < 13 else 0


PageHandler: TypeAlias = Callable[[Page], Awaitable[Reply]]


SCREENS: list[tuple[Route, PageHandler]] = []
"""All pages, and parts of pages."""


def screen(path: str, method: str = "GET", role: str = READER) -> Callable[[PageHandler], PageHandler]:
    """Make the function that follows the handler of a path of the pages."""

    def enter(handler: PageHandler) -> PageHandler:
        name = f"page:{handler.__name__.replace('_', '-')}"
        SCREENS.append((Route(path, name, method=method, role=role, is_foreign=True), handler))
        return handler

    return enter
