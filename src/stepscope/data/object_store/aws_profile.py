"""Credentials and endpoint of an S3 store from the profile files of the AWS tools.

Environment variables have priority and are read by the client itself. The values go to the client
and nowhere else.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from stepscope.errors import DataError

_WANTED = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region")
_NOT_READ = {"credential_process", "role_arn", "sso_session", "sso_start_url"}


def profile_settings() -> dict[str, str]:
    """Return key, secret, token and region of the selected profile, if not in the environment."""
    selected, found = _profile()
    keys = {name: found[name] for name in _WANTED if found.get(name)}
    if selected and not found:
        raise DataError(
            f"AWS_PROFILE is {selected!r}, which is not in ~/.aws/credentials or ~/.aws/config. "
            "Name another profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        keys = {name: value for name, value in keys.items() if name == "region"}
    elif "aws_access_key_id" not in keys and (needs := _NOT_READ & found.keys()):
        raise DataError(
            f"the AWS profile gets its credentials by {', '.join(sorted(needs))}, which only the "
            "AWS tools can do. Run: eval $(aws configure export-credentials --format env)"
        )
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        keys.pop("region", None)
    return keys


def configured_endpoint() -> str | None:
    """Return the endpoint that the environment or the profile sets for S3, as for the AWS tools."""
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if url := os.environ.get(variable):
            return url
    _, found = _profile()
    services = _section(_file("AWS_CONFIG_FILE", "config"), f"services {found.get('services')}")
    for line in services.get("s3", "").splitlines():  # indented lines below `s3 =`
        name, _, value = line.partition("=")
        if name.strip() == "endpoint_url":
            return value.strip()
    return found.get("endpoint_url") or None


def _profile() -> tuple[str | None, dict[str, str]]:
    """Return the name of the profile that was asked for, and its settings."""
    selected = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    profile = selected or "default"
    return selected, {
        **_section(_file("AWS_CONFIG_FILE", "config"), profile, f"profile {profile}"),
        **_section(_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile, profile),
    }


def _file(variable: str, name: str) -> Path:
    named = os.environ.get(variable)
    return Path(named).expanduser() if named else Path.home() / ".aws" / name


def _section(path: Path, *names: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, PermissionError) as error:
        # Not the parser's message, which quotes the line and may contain a secret.
        raise DataError(
            f"cannot read {path}: {type(error).__name__}. Correct it, or set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY."
        ) from None
    for name in names:
        if parser.has_section(name):
            return dict(parser[name])
    return {}
