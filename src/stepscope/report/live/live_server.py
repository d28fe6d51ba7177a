"""The server of the live page: its socket, and its routes.

The list, a record and a comparison are each served as a page and as its updates.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable
from html import escape
from importlib import resources
from pathlib import Path
from urllib.parse import unquote_to_bytes

from stepscope.errors import MissingExtraError, RequestError
from stepscope.report.html.chart_embed import vega_script
from stepscope.report.html.html_page import beginning, chart_data, part
from stepscope.report.live.live_views import View, message
from stepscope.report.live.run_index import Library, NotThereError
from stepscope.report.live.view_cache import ViewCache

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    from stepscope.report.live.access_control import Guard
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package not in ("starlette", "uvicorn"):
        raise
    raise MissingExtraError("the live page", package, "serve") from error

_EVERYWHERE = ("0.0.0.0", "::")
_KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_OWN = ("live.css", "live.js", "icon.svg")
_UPDATES = "/new"
_RUNS = "/runs/"

Answer = Callable[[Request], tuple[View, int]]


def serve(root: Path, host: str, port: int, listener: Callable[[str], None]) -> None:
    """Serve the records below a folder until Ctrl-C.

    `listener` is called with the URL once it can be opened; beyond loopback it contains a token.
    """
    script = vega_script()
    bound = _bind(host, port)
    address, at_port = bound.getsockname()[:2]
    token = None if ipaddress.ip_address(address).is_loopback else secrets.token_urlsafe(32)
    pages = ViewCache(Library(root))
    app = Guard(make_app(pages, script), token, cookie=f"stepscope_{at_port}")
    # Proxy headers with the client's address are not needed.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", ws="none",
        proxy_headers=False, server_header=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    listener(_url(address, at_port, token))
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        pages.close()
        bound.close()


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise RequestError(f"port: wanted a number from 0 (any free port) to 65535, found {port}.")
    try:
        family, *_, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(where[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(
            f"cannot listen on port {port} of {host}: {reason}. Choose another with --port, or a "
            "free one with --port 0."
        ) from error


def _url(address: str, port: int, token: str | None) -> str:
    name = socket.gethostname() if address in _EVERYWHERE else address
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


# --- Routes


def make_app(pages: ViewCache, vega_script: str) -> Starlette:
    """Return the ASGI application; `vega_script` draws its charts."""
    own = resources.files("stepscope.report.live")
    files = {name: own.joinpath(name).read_text(encoding="utf-8") for name in _OWN}
    files |= {"page.css": part("page.css"), "page.js": part("page.js"), "vega.js": vega_script}

    def list_records(request: Request) -> tuple[View, int]:
        return pages.list_records(), 200

    def show(request: Request) -> tuple[View, int]:
        return _view(pages, [_name_in(request)])

    def compare(request: Request) -> tuple[View, int]:
        names = list(dict.fromkeys(request.query_params.getlist("run")))
        if len(names) < 2:
            return message("Nothing to compare", "Choose two or more runs in the list."), 200
        return _view(pages, names)

    routes = [Route("/assets/{name}", _asset_of(files))]
    for path, answer in {"/": list_records, "/runs/{name:path}": show, "/compare": compare}.items():
        routes += [Route(path, _page(answer)), Route(f"{_UPDATES}{path}", _updates(answer))]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False  # no redirects to other forms of a URL
    return app


def _view(pages: ViewCache, names: list[str]) -> tuple[View, int]:
    try:
        return pages.view(names), 200
    except (NotThereError, FileNotFoundError):  # or it was removed while it was read
        return message("Not found", "The served folder has no run of that name."), 404


def _name_in(request: Request) -> str:
    """Return the path of a record as it is on disk, where names may have any bytes."""
    raw = unquote_to_bytes(request.scope["raw_path"])
    return os.fsdecode(raw.partition(_RUNS.encode())[2])


def _page(answer: Answer) -> Callable[[Request], Response]:
    def page(request: Request) -> Response:
        view, status = answer(request)
        path, query = (
            request.scope[name].decode("latin-1") for name in ("raw_path", "query_string")
        )
        html = _html(view, f"{_UPDATES}{path}?{query}".rstrip("?"))
        return Response(html.encode("utf-8", "replace"), status, media_type="text/html")

    return page


def _updates(answer: Answer) -> Callable[[Request], Response]:
    def updates(request: Request) -> Response:
        view, status = answer(request)
        version = view.version()
        if request.query_params.get("seen") == version:
            return Response(status_code=204)
        return JSONResponse({**vars(view), "version": version}, status)

    return updates


def _asset_of(files: dict[str, str]) -> Callable[[Request], Response]:
    marks = {
        name: f'"{hashlib.sha256(text.encode()).hexdigest()[:16]}"' for name, text in files.items()
    }

    def asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            return PlainTextResponse("There is no such file.\n", 404)
        headers = {"ETag": marks[name], "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == marks[name]:
            return Response(status_code=304, headers=headers)
        kind = _KINDS[name.rpartition(".")[2]]
        return Response(files[name].encode(), headers=headers, media_type=kind)

    return asset


def _html(view: View, updates: str) -> str:
    return (
        f'{beginning(view.title)}<link rel="icon" href="/assets/icon.svg">\n'
        '<link rel="stylesheet" href="/assets/page.css">\n'
        '<link rel="stylesheet" href="/assets/live.css">\n'
        f'</head>\n<body data-updates="{escape(updates)}" data-version="{view.version()}">\n'
        '<nav class="bar" aria-label="stepscope"><a href="/">All runs</a>'
        f'<span id="status" role="status">{"live" if view.active else ""}</span></nav>\n'
        f'<div id="view">\n{view.body}</div>\n'
        f"{chart_data(view.charts)}"
        '<script type="module" src="/assets/vega.js"></script>\n'
        '<script type="module" src="/assets/live.js"></script>\n</body>\n</html>\n'
    )
