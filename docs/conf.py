"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`."""

from aiothrottle import __version__

project = "aiothrottle"
author = "The aiothrottle authors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx asks for this name
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"aiothrottle {release}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

# In the docstrings a name stands in single backticks, for whoever reads the source.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
copybutton_prompt_text = "$ "
