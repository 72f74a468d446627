"""A real browser for the tests of pages: Chromium without a window."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import SkipTest

_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@contextmanager
def openBrowser(width: int = 1280, height: int = 900) -> Iterator[Any]:
    """
    A Selenium driver of a browser with a fresh profile, closed in the end.

    @param width: of the page, in pixels, like C{height}.
    """
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise SkipTest("chromium and chromedriver are not installed; .ci/install-tools installs them")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        resize(opened, width, height)
        yield opened
    finally:
        opened.quit()


def resize(browser: Any, width: int, height: int) -> None:
    """Give the page a size that windows may be too small for."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def picture(browser: Any, width: int, maxHeight: float) -> bytes:
    """The page as a PNG, C{width} pixels across, and the part of it above C{maxHeight} pixels."""
    resize(browser, width, 900)
    height = min(browser.execute_script("return document.scrollingElement.scrollHeight"), maxHeight)
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(shot["data"])


def consoleErrors(browser: Any) -> Sequence[str]:
    """
    What the page's scripts, or the lack of something that they wanted, have
    made the browser complain about since this was last asked.
    """
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
