"""The pictures of the page in docs/_static/page, taken anew of a running node: `python docs/take_pictures.py ADDRESS`.

ADDRESS is what `fednode open` prints. Needs playwright and a Chromium (`make test-web`), and Pillow.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent / "_static" / "page"
VIEWS = {
    "overview": "",
    "learning": "learning",
    "round": "round",
    "chain": "chain",
    "block": "chain/3",
    "federation": "federation",
    "model": "model",
    "settings": "settings",
}
WIDTH, MAX_HEIGHT = 1280, 1900
COLOURS = 128  # which keep a picture small
SETTLE_MS = 1500


def main(address: str) -> None:
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    base, _, _ = address.partition("#")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": WIDTH, "height": 800}).new_page()
        page.goto(address)
        page.wait_for_selector("main h1")
        for name, view in VIEWS.items():
            page.goto(f"{base}#/{view}")
            page.wait_for_selector("main .stack h1")
            page.wait_for_selector("main .loading", state="detached")
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(SETTLE_MS)
                _save(page.screenshot(full_page=True), PICTURES / f"{name}-{scheme}.png")
        browser.close()


def _save(data: bytes, path: Path) -> None:
    """No longer than a reader scrolls, and small."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    shown = picture.crop((0, 0, picture.width, min(picture.height, MAX_HEIGHT)))
    shown.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
