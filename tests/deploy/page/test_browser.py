"""The page in a real browser: Debian's Chromium, with Selenium (`pip install selenium`)."""

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest

from deploy.page.secret_link import TOKEN, address
from deploy.processes.ports import free_ports

from .test_http_interface import write
from .test_run_sources import MARKUP, lines_of

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
selenium = pytest.importorskip("selenium", reason="needs selenium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromium-driver"),
]
PATIENCE = 60.0
ROUNDS = [{0: (1, True), 3: (2, True)}, {1: (1, True), 3: (1, False)}, {0: (3, True)}]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    folder = tmp_path_factory.mktemp("chromium")
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        f"user-data-dir={folder}",
    ):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options, Service(DRIVER))
    yield driver
    driver.quit()


class Page:
    """A page's process."""

    def __init__(self, folder):
        self.folder, (self.port,) = folder, free_ports(1)
        self.where = address(self.port, "secret")
        self.start()

    def start(self):
        command = [sys.executable, "-m", "deploy.page", str(self.folder), str(self.port)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={TOKEN: "secret"}
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline()

    def stop(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def show(tmp_path):
    pages = []

    def started(lines):
        write(tmp_path / "run" / "md", lines)
        pages.append(Page(tmp_path / "run"))
        return pages[-1]

    yield started
    for page in pages:
        page.stop()


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


def text(browser, selector):
    return str(browser.execute_script(f"return document.querySelector({selector!r})?.textContent ?? ''"))


def table(browser, name):
    return browser.execute_script(
        f"return [...document.querySelectorAll('#{name} tbody tr')]"
        ".map(row => [...row.cells].map(cell => cell.textContent.trim()))"
    )


def resize(browser, width):
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def show_all(browser):
    """Scroll down, so that all parts are drawn."""
    for part in ("selections", "round", "clients", "log"):
        browser.execute_script(f"document.getElementById({part!r}).scrollIntoView()")
        time.sleep(0.2)


def test_what_is_shown_equals_the_history(browser, show):
    page = show([*lines_of(ROUNDS), {"type": "end", "rounds": 3, "reason": ""}])
    browser.get_log("browser")
    resize(browser, 1280)
    browser.get(page.where)
    wait_for(lambda: text(browser, "#state") == "finished")
    show_all(browser)
    wait_for(lambda: table(browser, "client-table"))
    assert table(browser, "trials") == [["md", "finished", "3 / 9", "50.0 %", "0.667", "1", "2"]]
    tiles = browser.execute_script(
        "return [...document.querySelectorAll('.tile b')].map(each => each.textContent)"
    )
    assert tiles == ["3 / 9", "50.0 %", "0.667", "4 / 5", "3 / 5", "2.0 s"]
    rows = {row[0]: row for row in table(browser, "client-table")}
    # client, state, group, battery, samples, draws, rounds, last round, failed, clipped, quarantined
    assert rows["client-0"][1:11] == ["available", "a", "50 %", "10", "4", "2", "3", "0", "2", "0"]
    assert rows["client-3"][1:11] == ["available", "a", "53 %", "30", "3", "2", "2", "1", "0", "0"]
    assert rows["client-1"][1:11] == ["quarantined", "b", "51 %", "40", "1", "1", "2", "0", "0", "3"]
    assert rows["client-4"][1:8] == ["available", "b", "–", "5", "0", "0", "never"]
    groups = {row[0]: row[1:] for row in table(browser, "group-table")}
    assert groups["a"] == ["2", "38 %", "88 %", "0", "0.333", "25.0 %"]
    assert groups["b"][:3] == ["2", "43 %", "13 %"]
    line = browser.execute_script("return document.querySelector('#loss path.line').getAttribute('d')")
    heights = [float(part.split(" ")[1]) for part in line[1:].split("L")]
    assert len(heights) == 4  # rounds 0 to 3, with losses 2, 2, 1 and 0.667
    assert heights[0] == heights[1] < heights[2] < heights[3]
    assert (heights[2] - heights[0]) / (heights[3] - heights[0]) == pytest.approx(1 / (4 / 3), abs=0.01)
    assert "round 3" in text(browser, "#which-round")
    assert browser.execute_script("return document.querySelector('#heat canvas').width") > 300
    wait_for(lambda: browser.execute_script("return performance.now()") > 3000)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_a_clients_markup_is_text(browser, show):
    lines = json.loads(json.dumps(lines_of(ROUNDS)).replace("client-0", MARKUP))
    lines[2]["client_groups"] = [MARKUP, "b", None, MARKUP, "<script>alert(2)</script>"]
    lines.append({"type": "warning", "round": 3, "reason": MARKUP})
    lines.append({"type": "error", "reason": MARKUP})
    page = show(lines)
    (page.folder / "logs").mkdir()
    (page.folder / "logs" / "md.log").write_text(f"{MARKUP}\n")
    browser.get(page.where)
    wait_for(lambda: text(browser, "#state") == "failed")
    show_all(browser)
    for part in ("#client-table", "#group-table", "#timeline svg", "#notes", "#notice", "#lines"):
        wait_for(lambda part=part: MARKUP[:5] in text(browser, part))
    assert MARKUP in [row[0] for row in table(browser, "client-table")]
    made = "return document.querySelectorAll('main img, main script, main b img').length"
    assert browser.execute_script(made) == 0
    refused = """
        try { document.getElementById('notes').innerHTML = '<img src=x>'; return 'set'; }
        catch (error) { return error.name; }
    """
    assert browser.execute_script(refused) == "TypeError"


@pytest.mark.parametrize("clients", [10, 100, 10_000])
def test_a_phone_shows_everything_without_scrolling_sideways(browser, show, clients):
    long = "a-device-with-a-very-long-name-" * 4
    lines = lines_of(ROUNDS, clients)
    lines[2]["client_ids"][clients - 1] = long
    page = show(lines)
    resize(browser, 390)
    try:
        browser.get(page.where)
        wait_for(lambda: text(browser, "#state") not in ("connecting", "reading"))
        show_all(browser)
        wait_for(lambda: len(table(browser, "client-table")) == min(25, clients))
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        rows = "return document.querySelectorAll('#heat svg .track').length / 3"
        assert browser.execute_script(rows) == min(40, clients)
        assert browser.execute_script("return document.querySelector('#heat canvas').clientWidth") <= 390
    finally:
        resize(browser, 1280)


def test_the_page_goes_on_after_a_restart_of_its_server(browser, show):
    page = show(lines_of(ROUNDS[:1]))
    browser.get(page.where)
    wait_for(lambda: text(browser, ".tile b") == "1 / 9")
    page.stop()
    wait_for(lambda: text(browser, "#state") == "not reachable")
    assert text(browser, ".tile b") == "1 / 9"
    write(page.folder / "md", lines_of(ROUNDS))
    page.start()
    wait_for(lambda: text(browser, ".tile b") == "3 / 9")
    assert text(browser, "#state") != "not reachable"


def test_before_the_first_run_the_devices_are_shown(browser, tmp_path):
    (tmp_path / "server.json").write_text("{}")
    with contextlib.closing(sqlite3.connect(tmp_path / "superlink.db")) as database:
        database.execute("CREATE TABLE node (node_id, name, status, online_until, last_deactivated_at)")
        database.execute("INSERT INTO node VALUES (1, ?, 'online', 9e12, '')", [MARKUP])
        database.commit()
    page = Page(tmp_path)
    try:
        browser.get(page.where)
        wait_for(lambda: table(browser, "other-table") == [[MARKUP, "online", "now"]])
        hidden = (
            "return ['learning', 'selections', 'round'].every(part => document.getElementById(part).hidden)"
        )
        assert browser.execute_script(hidden)
        write(tmp_path / "runs" / "first", lines_of(ROUNDS))
        wait_for(lambda: text(browser, ".tile b") == "3 / 9")
        wait_for(lambda: not browser.execute_script(hidden))
        assert text(browser, "#name") == "first"
    finally:
        page.stop()


def test_trials_that_differ_in_the_seed_share_a_line(browser, show, tmp_path):
    for seed in (1, 2):
        lines = lines_of(ROUNDS)
        lines[0]["seed"], lines[0]["started"] = seed, str(seed)
        for line in lines:
            if "test_loss" in line:
                line["test_loss"] *= seed
        write(tmp_path / "run" / ("md" if seed == 1 else "md-2"), lines)
        if seed == 1:
            first = lines
    page = show(first)
    browser.get(page.where)
    wait_for(lambda: len(table(browser, "trials")) == 2)
    wait_for(
        lambda: browser.execute_script("return document.querySelectorAll('#loss path.band').length") == 1
    )
    assert browser.execute_script("return document.querySelectorAll('#loss path.line').length") == 1
    assert [row[2] for row in table(browser, "trials")] == ["1", "2"]
