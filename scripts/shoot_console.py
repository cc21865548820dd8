"""Take the screenshots of docs/img at a running server with the demo's films (`make demo KEEP=1`), by Chromium.

python scripts/shoot_console.py http://127.0.0.1:2333
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).resolve().parent.parent / "docs/img"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 860
SHOTS = {
    "console-table": ("table/films", "light"),
    "console-rows": (
        (
            "rows/films?filter=year+%3E%3D+2000+AND+reviews+%3E+100&order=-score&column=title&column=year"
            "&column=genre&column=score&column=vector"
        ),
        "light",
    ),
    "console-search": (
        (
            "search/films?mode=hybrid&text=haunted&meaning=a+haunted+house+horror+film"
            "&column=title&column=year&column=director"
        ),
        "light",
    ),
    "console-plan": (
        (
            "search/films?mode=text&text=Kurosawa&filter=year+%3C+1960&plan=analyze&size=10"
            "&column=title&column=year&column=director"
        ),
        "dark",
    ),
    "console-sql": ("sql", "light"),
    "console-upload": ("upload", "light"),
    "console-find": ("find?q=vector&in=column", "dark"),
    "console-server": ("server", "light"),
}
"""Each picture's page, and whether it is light or dark."""
QUERY = """-- How many films of each decade, and how well they are rated
SELECT year / 10 * 10 AS decade, count(*) AS films, round(avg(score), 2) AS score
FROM films
WHERE year BETWEEN 1920 AND 2019
GROUP BY decade
ORDER BY decade"""
FILE = {
    "name": "cinemas.csv",
    "mimeType": "text/csv",
    "buffer": (
        b"cinema,city,postcode,opened,seats,screens,rating\n"
        b"Lichtspielhaus,Dresden,01099,1927-10-01,412,2,8.7\n"
        b"Odeon,Manchester,M1 4BH,1930-10-06,2920,7,7.9\n"
        b"Cin\xc3\xa9ma Lumi\xc3\xa8re,Lyon,69008,1998-06-05,270,4,9.1\n"
        b"Kino Atlantic,Bielsko,43-300,,180,1,\n"
        b"The Projectionist,Wellington,6011,2004-03-19,96,3,9.4\n"
    ),
}
"""The file that is about to be uploaded in one of them."""


def main() -> None:
    """Take all screenshots."""
    parser = argparse.ArgumentParser(description="Take the screenshots of the console's documentation.")
    parser.add_argument("url", help="a running server")
    url = parser.parse_args().url.rstrip("/")
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        sys.exit("There is no Chromium: scripts/install_services.sh chromium installs it on Debian.")
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for name, (address, scheme) in SHOTS.items():
            context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)  # type: ignore[arg-type]  # light or dark
            page = context.new_page()
            page.goto(f"{url}/console/{address}", wait_until="networkidle")
            if name == "console-sql":
                _run_query(page)
            if "upload" in name:
                page.set_input_files("#upload-file", FILE)
                page.wait_for_selector("#upload-columns table")
            if "plan" in name:
                page.locator(".plan").scroll_into_view_if_needed()
            page.screenshot(path=str(FOLDER / f"{name}.png"))
            context.close()
        browser.close()


def _run_query(page: Page) -> None:
    """Run the query of the picture, and draw its rows."""
    page.get_by_label("Query", exact=True).fill(QUERY)
    for _ in range(2):  # the first query of a server waits for a process
        page.keyboard.press("Control+Enter")
        page.locator("#result:not([aria-busy]) .grid").wait_for()
    page.locator("summary", has_text="Chart").click()
    page.locator(".sql-chart canvas").wait_for()
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 100)")


if __name__ == "__main__":
    main()
