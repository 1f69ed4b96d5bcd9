"""Templates of HTML. All that they show is escaped, and made safe by :func:`timers.core.printable.printable`.

Any sender chooses ids, keys, topics and values.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from timers.core.printable import printable_in_html


def html_templates(package: str, directory: str = "templates") -> Environment:
    """Returns the templates in a directory of a package. A name that a template does not get is an error."""
    return Environment(
        loader=PackageLoader(package, directory),
        autoescape=True,
        finalize=printable_in_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
