"""How Sphinx builds these pages: `sphinx-build -W docs docs/_build`.

It imports nothing of the package but its version: `scripts/reference.py` writes the reference.
"""

from aiothrottle import __version__

project = "aiothrottle"
author = "The aiothrottle authors"
copyright = f"2026, {author}"  # noqa: A001 - Sphinx asks for this name
version = release = __version__

extensions = [
    "myst_parser",
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

copybutton_prompt_text = "$ "
