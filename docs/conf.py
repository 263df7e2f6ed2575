"""Sphinx's settings for the documentation site, which `make docs` builds into `build/docs/html`.

The source folder is the repository itself, so links between its Markdown files need no translation. The
library is imported as `flwr_cohort`, for which `make docs` puts a link to `strategies/` on the Python path.
"""

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "Cohort"
author = "the Cohort developers"
copyright = author
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "myst_nb",  # Markdown and notebooks
    "sphinx_design",
    "sphinx_copybutton",
    "library_reference",
    "selector_settings",
]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "docs/**/*.ipynb",
    "examples/*/README.md",
    "results/README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
]

nitpicky = True  # a reference that leads nowhere is an error
nitpick_ignore_regex = [("py:class", ".*")]  # "ndarray, shape (S,)" in a docstring is no reference

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 6  # headings of all six levels get anchors, as on GitHub
nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs" / "notebooks")
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_show_tb = True  # a cell that fails is a warning, and so an error
nb_ipywidgets_js = {}  # nothing comes from another host
nb_merge_streams = True

autodoc_typehints = "none"  # the docstrings have types, shapes and units
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = True
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "Cohort"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e6e", "color-brand-content": "#0b6e6e"},
    "dark_css_variables": {"color-brand-primary": "#5cc8c2", "color-brand-content": "#5cc8c2"},
}
copybutton_exclude = ".linenos, .gp, .go"


def _add_pages(app: Any, docname: str, source: list[str]) -> None:
    """Replace OTHER-PAGES on the front page by the pages not named there, RESULTS by the pages of results."""
    if docname == root_doc:
        folder = ROOT / "docs"
        named = set(re.findall(r"^([\w-]+)$", source[0], re.MULTILINE)) | {"index"}
        pages = sorted({path.stem for path in folder.glob("*.md")} - named - {"results"})
        results = [f"results/{path.stem}" for path in sorted(folder.glob("results/*.md"))]
        results += ["results"] * (folder / "results.md").exists()
        text = source[0].replace("OTHER-PAGES", "\n".join(pages))
        source[0] = text.replace("RESULTS", "\n".join(sorted(results, key=len)))


def _add_entrance(app: Any, error: Exception | None) -> None:
    """Write the page that leads from the folder of the site to its front page."""
    if error is None and app.builder.name == "html":
        refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        (Path(app.outdir) / "index.html").write_text(f"<!doctype html>{refresh}<title>Cohort</title>\n")


def setup(app: Any) -> None:
    """Connect the functions above. The front page is read in every build, since it lists all pages."""
    app.connect("env-get-outdated", lambda *_: [root_doc])
    app.connect("source-read", _add_pages)
    app.connect("build-finished", _add_entrance)
