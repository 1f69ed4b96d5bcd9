"""The files that pages load: styles, scripts and icons. They are read once; their URL has a hash of their content."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from timers.console.call import Call, Handler, Reply
from timers.console.problems import Problem
from timers.console.routes import PUBLIC, Answer, Route
from timers.wire.printable import quoted

PATH = "/static"
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
_HASH_DIGITS = 12
_KEEP = "public, max-age=31536000, immutable"
"""The URL changes with the content, so browsers need not ask again."""

ROUTE = Route(
    "GET",
    PATH + "/{hash:[0-9a-f]+}/{name:.+}",
    "page:static",
    PUBLIC,
    "A file that pages load.",
    (Answer(200, "the file", content="text/css"),),
    is_foreign=True,
)


@cache
def _files() -> dict[str, bytes]:
    """Name below ``static`` -> content."""
    return dict(_walk(files("timers.console.web") / "static", ""))


def _walk(directory: Traversable, prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for each in directory.iterdir():
        name = prefix + each.name
        if each.is_dir():
            found += _walk(each, f"{name}/")
        elif each.name.rpartition(".")[2] in _TYPES:
            found.append((name, each.read_bytes()))
    return found


@cache
def url(name: str) -> str:
    """The URL of a file, below the base path."""
    digits = hashlib.sha256(_files()[name]).hexdigest()[:_HASH_DIGITS]
    return f"{PATH}/{digits}/{name}"


def handler() -> Handler:
    """Serves the files."""

    async def serve(call: Call) -> Reply:
        name = call.request.match_info["name"]
        content = _files().get(name)
        if content is None:
            raise Problem("not-found", f"there is no file {quoted(name)}")
        kind = _TYPES[name.rpartition(".")[2]]
        return Reply(content, headers={"Content-Type": f"{kind}; charset=utf-8", "Cache-Control": _KEEP})

    return serve
