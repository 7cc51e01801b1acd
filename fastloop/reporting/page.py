"""Render HTML pages that need no network, such as reports and pages about scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


def render_page(template: Path, **values: Any) -> str:
    """Render a template that extends `page.html.jinja` as HTML, in which all values are escaped.

    template: the file of the template. It may include files of its own folder and of the folder of
    this module. values: the template's variables, by name. Raises jinja2.UndefinedError if the
    template uses a variable that is missing.
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
