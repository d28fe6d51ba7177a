"""Messages for failed requests: never the server's text, which may quote credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass

_STATUS = re.compile(r"status(?: code)?: (\d{3})\b")
_WORTH_RETRYING = frozenset({408, 429})


@dataclass(frozen=True)
class RequestFailure:
    """A failed request: what happened, what to do, and whether a retry may help."""

    what: str
    advice: str = "Check the network and the server"
    retryable: bool = True


def failure_of(error: Exception) -> RequestFailure:
    """Return the meaning of a client's error."""
    kind, text = type(error).__name__, str(error)
    status = int(found.group(1)) if (found := _STATUS.search(text)) else None
    if "NoSuchBucket" in text:
        return RequestFailure(
            "there is no such bucket", "Check the name of the bucket, or create it", False
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return RequestFailure(
            "there is no such object", "Upload it with `stepscope data put`", False
        )
    if kind in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403):
        return RequestFailure(
            f"the store refused the credentials (HTTP {status or 403})",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile in AWS_PROFILE",
            False,
        )
    if status is not None:
        retryable = status >= 500 or status in _WORTH_RETRYING
        return RequestFailure(f"the store answered HTTP {status}", retryable=retryable)
    if "CredentialsError" in text or "credential" in text.lower():
        return RequestFailure(
            "no credentials were found",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials",
            False,
        )
    if "TimedOut" in text or "timed out" in text or "kind: Timeout" in text:
        return RequestFailure("the store did not answer in time")
    if "kind: Connect" in text or "error sending request" in text or "onnect" in text:
        return RequestFailure("the connection failed")
    return RequestFailure("the connection was closed before the end of the answer")
