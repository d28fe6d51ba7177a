"""What the live page refuses: other paths, links, methods, names, and whoever has no token."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from complete_run import write_sweep_of_runs, write_whole_run
from serve_client import Served, Start

from stepscope.records import schema

SECRET = "very-secret"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs, beside a secret run that is not below the served folder."""
    folder = tmp_path_factory.mktemp("attack")
    outside = write_whole_run(folder / "outside", SECRET)
    runs = folder / "runs"
    write_whole_run(runs / "good", "good")
    (runs / "good" / "notes.txt").write_text(SECRET)
    (runs / "linked").symlink_to(outside)
    (runs / "up").symlink_to("..")
    (runs / "circle").symlink_to("circle")
    table = write_whole_run(runs / "table", "table")
    (table / schema.EVENTS).unlink()
    (table / schema.EVENTS).symlink_to(folder / "outside" / schema.EVENTS)
    (runs / "record").mkdir()
    (runs / "record" / schema.RUN).symlink_to(outside / schema.RUN)
    pipe = write_whole_run(runs / "pipe", "pipe")
    (pipe / schema.TELEMETRY).unlink()
    os.mkfifo(pipe / schema.TELEMETRY)
    sweep = write_sweep_of_runs(runs / "sweep", b8=(1.0,), b16=(1.0,))
    (sweep / "trials" / "000").rename(folder / "elsewhere")
    (sweep / "trials" / "000").symlink_to(folder / "elsewhere")
    return runs


@pytest.fixture(scope="module")
def served(serve: Start, folder: Path) -> Served:
    return serve(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "..%2foutside",
        "%2e%2e/outside",
        "%2e%2e%2foutside",
        "good/../../outside",
        "good/%2e%2e/%2e%2e/outside",
        "..%5coutside",
        "..%252foutside",
        "good%00",
        "%00",
        "",
        ".",
        "good/",
        "/good",
        "good/run.json",
        "good/notes.txt",
        "linked",
        "up/outside",
        "circle",
        "table",
        "record",
        "pipe",
        "sweep",
        "%ff%fe",
        "x" * 5000,
    ],
)
def test_nothing_but_records_below_the_folder_is_read(served, name):
    for path in (f"/runs/{name}", f"/new/runs/{name}", f"/compare?run=good&run={name}"):
        reply = served.ask(path)
        assert reply.status in (400, 404) or "Choose two or more" in reply.text
        assert SECRET not in reply.text


def test_an_absolute_path_is_no_name(served, folder):
    outside = folder.parent / "outside"
    for name in (str(outside), quote(str(outside), safe=""), f"/{outside}"):
        assert served.ask(f"/runs/{name}").status == 404
        assert served.ask(f"/compare?run=good&run={quote(name)}").status == 404


def test_other_files_are_no_assets(served):
    for name in ("../app.py", "..%2fapp.py", "app.py", "%2fetc%2fpasswd"):
        assert served.ask(f"/assets/{name}").status == 404


def test_the_list_says_what_it_does_not_follow(served):
    text = served.ask("/").text
    assert SECRET not in text
    assert 'id="/runs/linked"' not in text
    assert text.count("leads out of the folder") == 4  # table, record, pipe, sweep


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed(served, method):
    for path in ("/", "/runs/good", "/nothing"):
        reply = served.ask(path, method)
        assert reply.status == 405
        assert reply.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(served):
    for path in ("/", "/runs/good", "/assets/page.css"):
        reply = served.ask(path, "HEAD")
        assert (reply.status, reply.text) == (200, "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", ""])
def test_another_name_for_loopback_is_refused(served, host):
    assert served.ask("/", headers={"Host": host}).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:99", "[::1]:6070", "LocalHost:1"])
def test_loopbacks_own_names_are_answered(served, host):
    assert served.ask("/", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "path", ["/", "/runs/good", "/runs/nothing", "/nothing", "/assets/page.js"]
)
def test_every_answer_forbids_what_is_from_elsewhere(served, path):
    headers = served.ask(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "*" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers


# On any other address


@pytest.fixture(scope="module")
def open_to_all(serve: Start, folder: Path) -> Served:
    """A server on every address, asked on loopback all the same."""
    served = serve(folder, "--host", "0.0.0.0")
    where = urlsplit(served.url)
    url = where._replace(netloc=f"127.0.0.1:{where.port}").geturl()
    return Served(url, served.process)


@pytest.fixture
def token(open_to_all: Served) -> str:
    (token,) = parse_qs(urlsplit(open_to_all.url).query)["token"]
    assert len(token) >= 40
    return token


@pytest.mark.parametrize("path", ["/", "/runs/good", "/new/", "/assets/page.js", "/?token="])
def test_without_the_token_nothing_is_shown(open_to_all, path):
    reply = open_to_all.ask(path)
    assert reply.status == 401
    assert "good" not in reply.text


@pytest.mark.parametrize("wrong", ["", "x", "%FF", "é", "stepscope"])
def test_a_wrong_token_is_refused_and_the_right_one_may_come_in_a_header(open_to_all, token, wrong):
    guess = f"{token[:-1]}{quote(wrong)}!"
    assert open_to_all.ask(f"/?token={guess}").status == 401
    bearer = f"Bearer {token}"
    assert open_to_all.ask("/", headers={"Authorization": bearer}).status == 200
    guess = f"{bearer}{quote(wrong)}x"
    assert open_to_all.ask("/", headers={"Authorization": guess}).status == 401


def test_the_token_is_given_once_and_then_kept_in_a_cookie(open_to_all, token):
    reply = open_to_all.ask(f"/compare?run=a&token={token}&run=b")
    assert reply.status == 303
    assert reply.headers["location"] == "/compare?run=a&run=b"
    cookie, *limits = reply.headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict"} <= set(limits)
    assert open_to_all.ask("/", headers={"Cookie": cookie}).status == 200
    assert open_to_all.ask("/", headers={"Cookie": f"{cookie}x"}).status == 401


def test_the_way_on_never_leads_elsewhere(open_to_all, token):
    reply = open_to_all.ask(f"//evil.example/?token={token}")
    assert reply.headers["location"] == "/evil.example/"


def test_every_start_has_a_token_of_its_own(serve, folder, token):
    assert token not in serve(folder, "--host", "0.0.0.0").url
