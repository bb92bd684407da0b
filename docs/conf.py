"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`."""

import os
from typing import Any

from aiothrottle import __version__

project = "aiothrottle"
author = "The aiothrottle authors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx asks for this name
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinxext.opengraph",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_title = f"aiothrottle {release}"
html_favicon = "_static/favicon.svg"
html_theme_options = {
    "source_edit_link": "https://github.com/aiothrottle/aiothrottle/edit/main/docs/{filename}"
}
ogp_image = "_static/social-card.png"
ogp_description_length = 160

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

# In the docstrings names are in single backticks, for readers of the source.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # "Retry()", not all that is in one
autodoc_default_options = {"members": True, "show-inheritance": True}
copybutton_prompt_text = "$ "

# The names of others are links where the docs are published; elsewhere a build needs no network.
if os.environ.get("READTHEDOCS"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "aiohttp": ("https://docs.aiohttp.org/en/stable", None),
        "redis": ("https://redis.readthedocs.io/en/stable", None),
    }

# Every name in a signature has to be on the page of the API, but for those of others and for those
# that nobody makes or names: states, type variables, and the insides of a base.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!aiothrottle\.).*"),
    ("py:.*", r"aiothrottle\..*(State|\._\w+)"),
    (
        "py:.*",
        r"aiothrottle\.(headers\.(fields|memo)|testing\.algorithms|transport)\..*",
    ),
    ("py:.*", r"aiothrottle\.algorithms\.(level\..*|composite\.Composite|windows\.Window)"),
    ("py:.*", r"aiothrottle\.(metrics\.recorder|stores\.redis_scripts)\..*"),
    ("py:.*", r"aiothrottle\.(adaptive\.concurrency\.Extremes|aiohttp\.arguments\..*)"),
]


def setup(app: Any) -> None:  # noqa: ANN401 - a Sphinx, which Python 3.11 has not
    """Have what a property says be read as text: "Whether it waits: ..." names no type."""
    app.connect("autodoc-process-docstring", _begin_with_text, priority=1)


def _begin_with_text(_: object, what: str, *others: Any) -> None:  # noqa: ANN401
    lines: list[str] = others[-1]
    if what in {"attribute", "data", "property"}:
        lines[:0] = ["..", ""]  # an empty comment: napoleon looks for a type in the first line
