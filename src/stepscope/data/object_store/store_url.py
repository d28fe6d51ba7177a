"""Parse and check the URL of an object store."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from stepscope.errors import RequestError

SCHEMES = ("s3", "gs", "az")


@dataclass(frozen=True)
class Address:
    """Bucket, prefix and, for an S3-compatible server, the endpoint.

    Contains no credentials, so it may be recorded and printed.
    """

    url: str
    endpoint_url: str | None = None

    @property
    def bucket(self) -> str:
        """The bucket's name; a container, in Azure."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """The prefix of all keys, without slashes around it."""
        return urlsplit(self.url).path.strip("/")

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint_url}" if self.endpoint_url else self.url


def is_store_url(source: str) -> bool:
    """Return whether a source is a URL, valid or not."""
    return "://" in source


def parse_address(url: str, endpoint_url: str | None = None) -> Address:
    """Return the address of a URL such as `s3://bucket/prefix`."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        known = ", ".join(f"{each}://" for each in SCHEMES)
        raise RequestError(f"source: wanted {known}, found {scheme}://.")
    refuse_secrets("source", url)
    if not rest.strip("/").partition("/")[0] or rest.startswith("/"):
        raise RequestError(
            f"source: wanted {scheme}://BUCKET/PREFIX, found no bucket in {url!r}. "
            "Name the bucket, such as s3://my-bucket/cifar10."
        )
    if endpoint_url is not None:
        refuse_secrets("endpoint_url", endpoint_url)
        if scheme != "s3":
            raise RequestError(
                f"endpoint_url: only for s3://, found source {scheme}://. Leave it out."
            )
        if urlsplit(endpoint_url).scheme not in ("http", "https"):
            raise RequestError(
                f"endpoint_url: wanted http:// or https:// and a host, found {endpoint_url!r}."
            )
    return Address(f"{scheme}://{rest.strip('/')}", endpoint_url)


def refuse_secrets(name: str, url: str) -> None:
    """Raise for a URL with a user, a password or a query: URLs are recorded."""
    if "@" in url or "?" in url or "#" in url:
        raise RequestError(
            f"{name}: wanted a URL without user name, password or query, because it is recorded. "
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile (AWS_PROFILE)."
        )
