"""Render HTML pages that need no network, such as reports and pages about scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def render_page(template: Path, **values: Any) -> str:
    """The page of a template that extends `page.html.jinja`; all values are escaped in it.

    template: a file, which may include others of its own folder, and those next to this module.
    Raises jinja2.UndefinedError for a value that the template uses and that is not given.
    """
    folders = [template.parent, Path(__file__).parent]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template.name).render(values)
