"""Credentials of an S3 store from the profile files of the AWS tools.

Environment variables have priority and are read by the client itself. The values go to the client
and nowhere else.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from stepscope.errors import DataError

_WANTED = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region")


def profile_settings() -> dict[str, str]:
    """Return key, secret, token and region of the selected profile, if not in the environment."""
    selected = os.environ.get("AWS_PROFILE")
    profile = selected or "default"
    found = {
        **_section(_file("AWS_CONFIG_FILE", "config"), profile, f"profile {profile}"),
        **_section(_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), profile, profile),
    }
    if selected and not found:
        raise DataError(
            f"AWS_PROFILE is {selected!r}, which is not in ~/.aws/credentials or ~/.aws/config. "
            "Name another profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        found = {name: value for name, value in found.items() if name == "region"}
    if os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        found.pop("region", None)
    return found


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
            return {key: parser[name][key] for key in _WANTED if parser[name].get(key)}
    return {}
