"""The site that `make docs` has built: nothing is missing, and nothing comes from another host."""

import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import strategies
from strategies import advice, selectors

ROOT = Path(__file__).parent.parent
SITE = ROOT / "build" / "docs" / "html"
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.docs


class Page(HTMLParser):
    """The links of a page, its anchors, and what the browser loads for it."""

    def __init__(self, path):
        super().__init__()
        self.links = []
        self.loaded = []
        self.anchors = {""}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") != "canonical" and "href" in values:
            self.loaded.append(values["href"])
        elif tag != "a" and "src" in values:
            self.loaded.append(values["src"])


@pytest.fixture(scope="module")
def pages():
    found = {path: Page(path) for path in SITE.rglob("*.html") if "_static" not in path.parts}
    assert len(found) > 30, "run `make docs`"
    return found


def test_no_link_is_broken(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            target, anchor = urldefrag(link)
            if re.match(r"[a-z]+:", target):
                continue
            linked = (path.parent / unquote(target)).resolve() if target else path
            if not linked.exists() or (linked in pages and unquote(anchor) not in pages[linked].anchors):
                broken.append(f"{path.relative_to(SITE)}: {link}")
    assert not broken


def test_nothing_is_loaded_from_another_host(pages):
    foreign = re.compile(r"(https?:)?//")
    loaded = {each for page in pages.values() for each in page.loaded}
    assert loaded
    assert not [each for each in loaded if foreign.match(each)]
    styles = [path.read_text("utf-8", "replace") for path in SITE.rglob("*.css")]
    assert styles
    assert not [each for text in styles for each in re.findall(r"url\(['\"]?((?:https?:)?//[^)]*)", text)]
    assert not [text for text in styles if re.search(r"@import[^;]*//", text)]


def test_every_page_of_the_documentation_is_in_the_menu(pages):
    front = SITE / "docs" / "index.html"
    listed = {(front.parent / urldefrag(link)[0]).resolve() for link in pages[front].links}
    sources = [*(ROOT / "docs").rglob("*.md"), *NOTEBOOKS, *(ROOT / "examples").glob("*/README.md")]
    built = {
        SITE / path.relative_to(ROOT).with_suffix(".html") for path in sources if "api" not in path.parts
    }
    assert not built - listed - {front}


def test_the_reference_has_every_public_name():
    header, _, packed = (SITE / "objects.inv").read_bytes().partition(b"zlib.\n")
    assert header
    documented = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    public = {f"flwr_cohort.{name}" for name in strategies.__all__}
    public |= {f"flwr_cohort.selectors.{name}" for name in selectors.__all__}
    public |= {f"flwr_cohort.advice.{name}" for name in advice.__all__}
    public -= {"flwr_cohort.Selector", "flwr_cohort.advice.BASELINE"}  # as selectors.Selector; a constant
    assert not public - documented


def test_the_reference_has_every_selector(pages):
    text = (SITE / "docs" / "api" / "registry.html").read_text("utf-8")
    for name in selectors.available():
        assert f'id="selector-{name}"' in text
        for setting in selectors.selector_type(name).allowed_settings():
            assert f">{setting}<" in text, f"{name}: {setting}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ran_and_shows_what_it_found(notebook):
    page = (SITE / notebook.relative_to(ROOT).with_suffix(".html")).read_text("utf-8")
    assert page.count('class="cell_output') >= 3
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"]], "outputs belong to the site, not to the repository"
    assert sum("assert " in "".join(cell["source"]) for cell in code) >= 3


def test_there_are_five_notebooks():
    assert len(NOTEBOOKS) == 5
