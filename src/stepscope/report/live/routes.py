"""The routes: the list, a record, a comparison; each as a page and as its updates."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from html import escape
from importlib import resources
from urllib.parse import unquote_to_bytes

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stepscope.report.html.html_page import beginning, chart_data, part
from stepscope.report.live.live_views import View, message
from stepscope.report.live.run_index import NotThereError
from stepscope.report.live.view_cache import ViewCache

_KINDS = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_OWN = ("live.css", "live.js", "icon.svg")
_UPDATES = "/new"
_RUNS = "/runs/"

Answer = Callable[[Request], tuple[View, int]]


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
