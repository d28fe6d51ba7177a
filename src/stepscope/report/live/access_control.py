"""Access control: read-only requests, from known hosts or with a token.

On loopback, the Host header must name loopback too: otherwise a page from elsewhere could point its
own name here and read everything (DNS rebinding). On any other address, a request needs the token.
"""

from __future__ import annotations

import contextlib
import secrets
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """An ASGI application that passes permitted requests to another."""

    def __init__(self, app: ASGIApp, token: str | None, cookie: str = "stepscope") -> None:
        self._app = app
        self._token = token
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that is refused; None if it is permitted."""
        if scope["method"] not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return PlainTextResponse("This server is read-only.\n", 405, headers=allowed)
        headers = Headers(scope=scope)
        if self._token is None:
            if _name_in(headers.get("host", "")) not in _LOOPBACK_NAMES:
                return PlainTextResponse("This server only answers requests to localhost.\n", 421)
            return None
        return self._ask_for_token(scope, headers, self._token)

    def _ask_for_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        named = [value for name, value in query if name == "token"]
        if named and _same(named[-1], token):
            others = urlencode([(name, value) for name, value in query if name != "token"])
            # Strip leading slashes: `//elsewhere` would redirect to another host.
            path = "/" + scope["raw_path"].decode("latin-1").lstrip("/\\")
            answer = RedirectResponse(f"{path}?{others}".rstrip("?"), 303)
            answer.set_cookie(self._cookie, token, httponly=True, samesite="strict")
            return answer
        given = headers.get("authorization", "").removeprefix("Bearer ")
        cookie = None
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        if _same(given, token) or (cookie is not None and _same(cookie.value, token)):
            return None
        words = "Open the address with the token that `stepscope serve` printed.\n"
        return PlainTextResponse(words, 401, headers={"WWW-Authenticate": "Bearer"})


def _name_in(host: str) -> str:
    """Return the host name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _same(given: str, token: str) -> bool:
    """Compare in constant time."""
    return secrets.compare_digest(given.encode("utf-8", "replace"), token.encode())
