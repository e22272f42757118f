"""A headless Chromium for tests of pages; without one (and its driver) these tests are skipped."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1400,1000",
)


class Browser:
    """One Chromium with a new profile."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open a file; what the page before it said is forgotten."""
        self.driver.get("about:blank")
        self.console(), self.requests()
        self.driver.get(path.resolve().as_uri())

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that a CSS selector finds."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """Return the one element that a CSS selector finds."""
        found = self.all(selector)
        assert len(found) == 1, (selector, len(found))
        return found[0]

    def texts(self, selector: str) -> list[str]:
        """Return the text of each element, also of hidden ones."""
        return [str(one.get_property("textContent")) for one in self.all(selector)]

    def console(self) -> list[str]:
        """Return what the console has got since the last call: errors, violations of the policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for since the last call."""
        entries = self.driver.get_log("performance")
        messages: list[Any] = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [one for one in messages if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in sent]

    def check_quiet(self) -> None:
        """Fail if the page complained, or asked for anything but itself and what lies in it."""
        assert self.console() == []
        assert [url for url in self.requests() if not url.startswith(("file:", "data:"))] == []


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, or skip the test where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver_program = shutil.which("chromedriver")
    if program is None or driver_program is None:
        pytest.skip("Chromium and chromedriver are not installed")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = program
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(driver_program))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
