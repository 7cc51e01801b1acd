"""Sphinx's settings: `make docs` builds the site in docs/_build/html.

The source folder is the repository, so that links between README.md, docs/ and experiments/ are the
same on the site and in a checkout.
"""

import re

from docutils import nodes

project = "fastloop"
html_title = "fastloop"
html_theme = "furo"
html_extra_path = ["site"]
html_static_path = ["static"]
html_css_files = ["narrow.css"]
html_show_copyright = False
html_show_sourcelink = False

highlight_language = "text"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "experiments/**.md"]
exclude_patterns = [".*", "outputs", "docs/_build", "README.md", "build", "dist"]
suppress_warnings = ["toc.not_included"]  # studies are reached by links

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3
default_role = "py:obj"
autodoc_typehints = "none"
autodoc_member_order = "bysource"


def break_names_in_tables(_, doctree, __):
    """Let names of settings in tables break behind their signs, for the width of a phone."""
    names = [
        each for table in doctree.findall(nodes.table) for each in table.findall(nodes.literal)
    ]
    for name in names:
        first, *others = re.split(r"(?<=[_.=/])(?=\w)", name.astext())
        name.clear()
        name.append(nodes.Text(first))
        for part in others:
            # Unlike an invisible character, this tag is not copied with the name.
            name.extend([nodes.raw("", "<wbr>", format="html"), nodes.Text(part)])


def setup(app):
    """Sphinx calls this."""
    app.connect("doctree-resolved", break_names_in_tables)
