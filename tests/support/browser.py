"""Pages as a browser shows them."""

import html
import json
import re
import shutil
import subprocess

import pytest

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SCRIPT = """
frame.onload = () => {
  const page = frame.contentDocument, images = [...page.images];
  document.body.dataset.found = JSON.stringify({
    images: images.length,
    shown: images.filter(i => i.complete && i.naturalWidth > 0).length,
    alts: images.filter(i => i.alt).length,
    width: page.documentElement.scrollWidth,
    headings: page.querySelectorAll("h2").length,
    loaded: frame.contentWindow.performance.getEntriesByType("resource")
      .filter(e => !e.name.startsWith("data:")).length,
  });
};"""


def browse(folder, *flags):
    """What the browser prints; its profile lies in `folder`."""
    browser = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser is installed (looked for {', '.join(_BROWSERS)})")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", f"--user-data-dir={folder / 'profile'}"]
    return subprocess.run([*command, *flags], capture_output=True, timeout=120, check=True).stdout


def look_at(page, folder, width):
    """Pictures, headings and widths of a page in a window of this width."""
    # In a frame, because a browser's own window has a least width.
    content = json.dumps(page.read_text()).replace("</", "<\\/")
    wrapper = folder / "wrapper.html"
    wrapper.write_text(
        f'<body><iframe id="frame" style="width:{width}px;height:900px;border:0"></iframe>'
        f"<script>{_SCRIPT} frame.srcdoc = {content};</script></body>"
    )
    dom = browse(folder, "--virtual-time-budget=8000", "--dump-dom", f"file://{wrapper}")
    return json.loads(html.unescape(re.search(r'data-found="([^"]*)"', dom.decode()).group(1)))
