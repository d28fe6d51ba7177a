"""The client of an object store: concurrent requests, retried with exponential back-off.

Each process creates its own client on its first request: the threads of the library do not survive
a fork. A process that forks workers which send requests must not send any itself
(`store_process`).
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, cast

from stepscope.data.object_store.aws_profile import configured_endpoint, profile_settings
from stepscope.data.object_store.store_url import Address
from stepscope.errors import DataError, require_packages

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Handle
    from obstore.store import S3Config

T = TypeVar("T")
Check = Callable[[bytes], "str | None"]

IN_FLIGHT = 32  # concurrent requests of a process

_STATUS = r"status(?: code)?:"
_WORTH_RETRYING = frozenset({408, 429})


@dataclass(frozen=True)
class RetryPolicy:
    """Timeouts and limits of one request."""

    answer_within_s: float = 30.0  # each attempt
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0
    give_up_after_s: float = 60.0  # all attempts
    wrong_answers: int = 4  # that fail their check

    def waits_s(self) -> Iterator[float]:
        """Yield the wait after each failure: exponential back-off with jitter."""
        longest = self.first_wait_s
        while True:
            yield longest * random.uniform(0.5, 1.0)
            longest = min(2 * longest, self.longest_wait_s)


@dataclass
class RequestStats:
    """The cost of some requests: the time of each successful one, bytes, and retries."""

    times_s: list[float] = field(default_factory=list)
    bytes: int = 0
    retried: Counter[str] = field(default_factory=Counter)
    waited_s: float = 0.0  # between attempts, for the request that waited longest

    @property
    def retries(self) -> int:
        """The number of retries."""
        return sum(self.retried.values())


@dataclass(frozen=True)
class RequestFailure:
    """A failed request: what happened, what to do, and whether a retry may help.

    Never the server's text, which may quote credentials.
    """

    what: str
    advice: str = "Check the network and the server"
    retryable: bool = True


def failure_of(error: Exception) -> RequestFailure:
    """Return the meaning of a client's error."""
    text = f"{type(error).__name__}: {error}"
    found = re.search(rf"{_STATUS} (\d{{3}})\b", text)
    status = int(found.group(1)) if found else None
    if status not in (None, 401, 403, 404):
        retryable = status >= 500 or status in _WORTH_RETRYING
        return RequestFailure(f"the store answered HTTP {status}", retryable=retryable)
    meanings = (failure for pattern, failure in _FAILURES.items() if re.search(pattern, text))
    closed = RequestFailure("the connection was closed before the end of the answer")
    return next(meanings, closed)


_FAILURES = {
    "NoSuchBucket": RequestFailure(
        "there is no such bucket", "Check the name of the bucket, or create it", False
    ),
    rf"NotFoundError|{_STATUS} 404": RequestFailure(
        "there is no such object", "Upload it with `stepscope data put`", False
    ),
    rf"PermissionDeniedError|UnauthenticatedError|{_STATUS} 40[13]": RequestFailure(
        "the store refused the credentials",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile in AWS_PROFILE",
        False,
    ),
    "[Cc]redential": RequestFailure(
        "no credentials were found",
        "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials",
        False,
    ),
    "TimedOut|timed out|kind: Timeout": RequestFailure("the store did not answer in time"),
    "onnect|error sending request": RequestFailure("the connection failed"),
}


class _GivenUp(Exception):  # noqa: N818 - another request failed
    """Another request of the same call has failed."""


class ObjectStore:
    """Objects by key, under the prefix of an address."""

    def __init__(self, address: Address, retry_policy: RetryPolicy | None = None) -> None:
        self.address = address
        self.retry_policy = retry_policy or RetryPolicy()
        self._pid = -1
        self._made: tuple[Handle, ThreadPoolExecutor] | None = None

    def get(
        self, keys: Sequence[str], checks: Sequence[Check], stats: RequestStats | None = None
    ) -> list[bytes]:
        """Return objects; each check returns what is wrong with its object, or None."""
        import obstore

        def read(handle: Handle, place: int) -> bytes:
            body = bytes(obstore.get(handle, keys[place]).bytes())
            if (wrong := checks[place](body)) is not None:
                raise _Wrong(wrong)
            return body

        return self._all(read, keys, stats)

    def put(
        self, keys: Sequence[str], bodies: Sequence[bytes], stats: RequestStats | None = None
    ) -> None:
        """Write objects."""
        import obstore

        def write(handle: Handle, place: int) -> bytes:
            obstore.put(handle, keys[place], bodies[place], use_multipart=False)
            return bodies[place]

        self._all(write, keys, stats)

    def listing(self) -> dict[str, tuple[int, str | None]]:
        """Return the size and entity tag of each object under the prefix, by key."""
        import obstore

        def walk(handle: Handle, place: int) -> dict[str, tuple[int, str | None]]:
            return {
                each["path"]: (each["size"], (each["e_tag"] or "").strip('"') or None)
                for page in obstore.list(handle)
                for each in page
            }

        return self._all(walk, ["(list)"], None)[0]

    def _all(
        self,
        ask: Callable[[Handle, int], T],
        keys: Sequence[str],
        stats: RequestStats | None,
    ) -> list[T]:
        """Send the requests of all keys concurrently; return results in the order of keys."""
        handle, threads = self._client()
        stats, lock, given_up = stats or RequestStats(), threading.Lock(), threading.Event()

        def one(place: int) -> T:
            try:
                return self._retry(lambda: ask(handle, place), keys[place], stats, lock, given_up)
            except BaseException:
                given_up.set()
                raise

        answers = [threads.submit(one, place) for place in range(len(keys))]
        failure: BaseException | None = None
        for answer in answers:  # all of them: none may still run when this returns
            error = answer.exception()
            if error is not None and (failure is None or isinstance(failure, _GivenUp)):
                failure = error
        if failure is not None:
            raise failure
        return [answer.result() for answer in answers]

    def _retry(
        self,
        ask: Callable[[], T],
        key: str,
        stats: RequestStats,
        lock: threading.Lock,
        given_up: threading.Event,
    ) -> T:
        """Send a request until it succeeds or the retry policy gives up."""
        policy, began = self.retry_policy, time.monotonic()
        wrong_answers, waited_s = 0, 0.0
        for attempts, wait_s in enumerate(policy.waits_s(), start=1):
            if given_up.is_set():
                raise _GivenUp
            asked = time.monotonic()
            try:
                answer = ask()
            except Exception as error:  # the library's errors have no common root
                wrong_answers += isinstance(error, _Wrong)
                failure = failure_of(error) if not isinstance(error, _Wrong) else error.failure
            else:
                with lock:
                    stats.times_s.append(time.monotonic() - asked)
                    stats.bytes += len(answer) if isinstance(answer, bytes) else 0
                return answer
            over = time.monotonic() - began + wait_s > policy.give_up_after_s
            if not failure.retryable or over or wrong_answers >= policy.wrong_answers:
                times = f" after {attempts} attempts" if attempts > 1 else ""
                raise DataError(
                    f"object {key} of {self.address}: {failure.what}{times}. {failure.advice}."
                ) from None
            with lock:
                stats.retried[failure.what] += 1
                waited_s += wait_s
                stats.waited_s = max(stats.waited_s, waited_s)
            given_up.wait(wait_s)
        raise AssertionError("waits have no end")

    def _client(self) -> tuple[Handle, ThreadPoolExecutor]:
        if self._made is None or self._pid != os.getpid():
            self._made = (
                _open(self.address, self.retry_policy),
                ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="object-store"),
            )
            self._pid = os.getpid()
        return self._made

    def __getstate__(self) -> object:
        return {**self.__dict__, "_made": None, "_pid": -1}


class _Wrong(Exception):  # noqa: N818 - about an object, not a program
    """An object was read and failed its check."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.failure = RequestFailure(what, "Upload it again with `stepscope data put`")


def _open(address: Address, retry_policy: RetryPolicy) -> Handle:
    require_packages(f"reading {address.url}", "s3", "obstore")
    from obstore.store import from_url

    config, endpoint_url = None, None
    if address.url.startswith("s3://"):
        endpoint_url = address.endpoint_url or configured_endpoint()
        config = _s3_config(address, endpoint_url)
    try:
        return from_url(
            address.url,
            config=config,
            client_options={
                "timeout": f"{round(retry_policy.answer_within_s * 1000)}ms",
                "connect_timeout": "5s",
                "allow_http": (endpoint_url or "").startswith("http://"),
            },
            retry_config={"max_retries": 0},  # we retry ourselves, to count and report retries
        )
    except Exception as error:  # the library's errors have no common root, and may quote settings
        raise DataError(
            f"cannot open {address}: its settings are invalid ({type(error).__name__}). Check the "
            "URL and the profile."
        ) from None


def _s3_config(address: Address, endpoint_url: str | None) -> S3Config:
    config = profile_settings()
    if endpoint_url is not None:
        config["endpoint"] = endpoint_url
        # S3-compatible servers ignore the region, but a signature must contain one.
        if "region" not in config and not _is_set("AWS_REGION", "AWS_DEFAULT_REGION"):
            config["region"] = "us-east-1"
        # Otherwise the client requests credentials from AWS's metadata service, and waits.
        if "aws_access_key_id" not in config and not _is_set(
            "AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE"
        ):
            raise DataError(
                f"no credentials for {address}. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials."
            )
    return cast("S3Config", config)


def _is_set(*variables: str) -> bool:
    return any(os.environ.get(name) for name in variables)
