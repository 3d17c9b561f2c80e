"""The pictures of the page in docs/_static/page, taken anew of a running node: `python docs/take_pictures.py ADDRESS`.

ADDRESS is what `fednode open` prints. Those of the tutorial: `python docs/take_pictures.py heart_disease_uci.csv`,
which goes through docs/four-hospitals.md by its own commands, and prints what its sites' status says in the end.

Needs playwright and a Chromium (`make test-web`), and Pillow; and for the tutorial a `fednode` on the path.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

PICTURES = Path(__file__).parent / "_static" / "page"
TUTORIAL = Path(__file__).parent / "four-hospitals.md"
SITES = ("cleveland", "hungary", "switzerland", "va")
SHOWN = "va"  # whose page the tutorial shows
FIRST_PAGE = 8480  # the port of the first site's page
WAIT_S = 600.0  # for all rounds
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
OF_TUTORIAL = {"hospitals-overview": "", "hospitals-learning": "learning", "hospitals-federation": "federation"}
WIDTH, MAX_HEIGHT = 1280, 1900
COLOURS = 128  # which keep a picture small
SETTLE_MS = 1500


def main(what: str) -> None:
    if what.endswith(".csv"):
        show_tutorial(Path(what).resolve())
    else:
        take(what, VIEWS)


def show_tutorial(table: Path) -> None:
    """Four nodes from raw files to their pictures, as the tutorial has it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        split(table, folder)
        ids = {site: init(site, 7500 + i, folder) for i, site in enumerate(SITES)}
        call(*read_genesis(ids), folder=folder)
        nodes = []
        try:
            for i, site in enumerate(SITES):
                for shared in ("genesis.yaml", "initial_model.safetensors"):
                    shutil.copy(folder / shared, folder / site)
                terms = ["training.publish_min_samples=10", f"http.listen=127.0.0.1:{FIRST_PAGE + i}"]
                command = ["fednode", "start", "--config", f"{site}/node.yaml", *(f"--set={term}" for term in terms)]
                with (folder / f"{site}.log").open("wb") as log:
                    nodes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
            wait(folder)
            for site in SITES:
                print(f"--- {site}\n{call('fednode', 'status', '--config', f'{site}/node.yaml', folder=folder)}")
            for command in (["rounds"], ["chain", "verify", "--deep"]):
                print(call("fednode", *command, "--config", f"{SHOWN}/node.yaml", folder=folder))
            take(call("fednode", "open", "--config", f"{SHOWN}/node.yaml", folder=folder).strip(), OF_TUTORIAL)
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait()


def split(table: Path, folder: Path) -> None:
    """A file for each hospital."""
    rows = defaultdict(list)
    with table.open(newline="") as lines:
        head, *all_rows = csv.reader(lines)
    for row in all_rows:
        rows[row[head.index("dataset")].split()[0].lower()].append(row)
    for site, own in rows.items():
        with (folder / f"{site}.csv").open("w", newline="") as lines:
            csv.writer(lines).writerows([head, *own])


def init(site: str, port: int, folder: Path) -> str:
    """The site's id."""
    said = call(
        *("fednode", "init", site, "--advertise", f"127.0.0.1:{port}", "--data", f"csv:{site}.csv", "--label", "num"),
        folder=folder,
    )
    return said.partition("@")[0].strip()


def read_genesis(ids: Mapping[str, str]) -> list[str]:
    """The tutorial's own command, with the sites' ids."""
    found = re.search(r"```sh\n(fednode genesis new .*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise SystemExit(f"{TUTORIAL}: expected a block that begins with fednode genesis new")
    words = shlex.split(found[1].replace("\\\n", " "))
    return [re.sub(r"^(\w+)=ID@", lambda each: f"{each[1]}={ids[each[1]]}@", word) for word in words]


def call(*words: str, folder: Path) -> str:
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout


def wait(folder: Path) -> None:
    """Until the run is over at all sites, and training alone has come as far."""
    end_s = time.monotonic() + WAIT_S
    for site in SITES:
        while True:
            command = ["fednode", "status", "--json", "--config", f"{site}/node.yaml"]
            said = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout
            status = json.loads(said or "{}")
            alone = status.get("alone") or {}
            if status.get("done") and status.get("measured_round") and not alone.get("owed_steps", 1):
                break
            if time.monotonic() > end_s:
                raise SystemExit(f"waited {WAIT_S:g} s for {site}: {(folder / f'{site}.log').read_text()[-2000:]}")
            time.sleep(1)


def take(address: str, views: Mapping[str, str]) -> None:
    """Both schemes of some views."""
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    base, _, _ = address.partition("#")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": WIDTH, "height": 800}).new_page()
        page.goto(address)
        page.wait_for_selector("main h1")
        for name, view in views.items():
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
