"""Which words of `stepscope trace …` are ours, and where the script's own begin."""

from __future__ import annotations

_WITHOUT_VALUE = ("--json", "--help", "-h", "--version")


def mark_script(arguments: list[str]) -> list[str]:
    """Put `--` in front of what is the script's own, so that none of it is taken for ours."""
    words = iter(range(1, len(arguments)))
    for at in words:
        word = arguments[at]
        if word == "--" or not word.startswith("-"):
            end = at
            break
        end = at + 1 if word in _WITHOUT_VALUE or "=" in word else next(words, at) + 1
        if word in ("-m", "--module") or word.startswith("--module="):
            break
    else:
        return arguments
    return [
        *arguments[:end],
        *([] if arguments[end : end + 1] == ["--"] else ["--"]),
        *arguments[end:],
    ]
