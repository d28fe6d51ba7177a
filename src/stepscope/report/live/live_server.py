"""The server of the live page, and its socket."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from stepscope.errors import MissingExtraError, RequestError
from stepscope.report.html.chart_embed import vega_script

try:
    import uvicorn

    from stepscope.report.live.access_control import Guard
    from stepscope.report.live.routes import make_app
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    if package not in ("starlette", "uvicorn"):
        raise
    raise MissingExtraError("the live page", package, "serve") from error

from stepscope.report.live.run_index import Library
from stepscope.report.live.view_cache import ViewCache

_EVERYWHERE = ("0.0.0.0", "::")


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
