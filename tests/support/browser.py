"""Pages in a real browser: what their scripts do is asked of them while they are shown."""

import json
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_WATCH = """<script>window.mistakes = [];
addEventListener("error", event => mistakes.push(event.message));
addEventListener("unhandledrejection", event => mistakes.push(String(event.reason)));
const frame = () => new Promise(requestAnimationFrame);
async function until(found) {
  for (let i = 0; i < 1200 && !found(); i++) await frame();
  return found();
}
const point = (target, kind, x, y) => target.dispatchEvent(
  new PointerEvent(kind, { bubbles: true, clientX: x, clientY: y, pointerType: "mouse" }));
</script>"""
_ASK = """<script>addEventListener("load", async () => {
  let value = null;
  try { value = await (async () => { %s })(); } catch (error) { mistakes.push(String(error)); }
  await fetch("/", { method: "POST", body: JSON.stringify({ value, mistakes }) });
});</script>"""


def in_browser(
    page: str,
    script: str,
    profile: Path,
    *,
    width: int = 1280,
    fragment: str = "",
    dark: bool = False,
) -> Any:
    """What ``script``, the body of an async function, returns in a page when it is loaded.

    It may wait for ``frame()`` and ``until(condition)``, and ``point(element, event, x, y)``.
    Mistakes of scripts fail the test.

    Args:
        page: HTML.
        script: of JavaScript.
        profile: a folder for the browser.
        width: of the window.
        fragment: of the address, after the sign #.
        dark: whether the reader wants dark pages.
    """
    # A page may forbid all scripts but its own.
    page = re.sub(r"<meta http-equiv=.Content-Security-Policy.[^>]*>", "", page)
    shown = page.replace("<head>", f"<head>{_WATCH}", 1) + _ASK % script
    with _served(shown.encode()) as (address, answers):
        command = [
            *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--window-size={width},900", f"--user-data-dir={profile}", "--hide-scrollbars"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            f"{address}#{fragment}",
        ]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            found = answers.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(30)
    assert not found["mistakes"], found["mistakes"]
    return found["value"]


@contextmanager
def _served(page: bytes) -> Iterator[tuple[str, "queue.Queue[Any]"]]:
    answers: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            own = page if self.path == "/" else b""
            self.send_response(200 if own else 404)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(own)))
            self.end_headers()
            self.wfile.write(own)

        def do_POST(self) -> None:
            answers.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/", answers
        finally:
            server.shutdown()
            thread.join()
