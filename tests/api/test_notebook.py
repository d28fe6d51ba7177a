"""A run as the last line of a notebook's cell, displayed by IPython itself."""

from __future__ import annotations

import base64
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from written_tables import epoch_row, step, write_tables

import stepscope
from stepscope.errors import RequestError

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">'


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> InteractiveShell:
    """A notebook's shell, without a history on disk."""
    InteractiveShell.clear_instance()
    home = str(tmp_path_factory.mktemp("ipython"))
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv("VIRTUAL_ENV", raising=False)  # of the person's shell, maybe another one
        shell = InteractiveShell.instance(ipython_dir=home)
    shell.history_manager.enabled = False
    return shell


def write_some(folder: Path, **info: object) -> Path:
    telemetry = [{"time_s": n / 2, "pss_bytes": n * 2**20, "main_cpu_s": n / 4} for n in range(9)]
    trained = epoch_row(1, 0.0, split="train", loading_s=0.5, training_s=1.0)
    write_tables(folder, [step(n) for n in range(1, 40)], [trained], telemetry, **info)
    return folder


def images_of(html: str) -> list[str]:
    found = re.findall(r'<img src="data:image/svg\+xml;base64,([^"]+)" alt="[^"]+">', html)
    return [base64.b64decode(each).decode() for each in found]


def without_images(html: str) -> str:
    return re.sub(r"base64,[^\"]+", "", html)


def test_a_cell_that_ends_with_a_run_shows_its_headline_and_charts(tmp_path, shell):
    gain = {"expected_speedup": 1.7, "interval": [1.5, 1.9], "command": None}
    verdict = {"text": "Add workers: 1.7x faster.", "cause": "slow_loading", **gain}
    run = write_some(tmp_path, summary={"verdict": verdict})
    cell = f"import stepscope\nstepscope.load_run({str(run)!r})"
    with capture_output():
        done = shell.run_cell(cell)
    done.raise_error()
    shown, _ = shell.display_formatter.format(done.result)
    assert shown["text/plain"].startswith("NotebookRun(path=")
    assert "<strong>by-hand</strong>" in shown["text/html"]
    assert "Add workers" in shown["text/html"]
    images = images_of(shown["text/html"])
    assert len(images) >= 4  # of steps, epochs, learning, memory
    for image in images:
        assert ElementTree.fromstring(image).tag == "{http://www.w3.org/2000/svg}svg"


def test_a_name_is_never_markup_in_the_notebook(tmp_path):
    spec = {"model": EVIL, "data": EVIL}
    run = stepscope.load_run(
        write_some(tmp_path, name=EVIL, spec=spec, reason=EVIL, status="failed")
    )
    html = run._repr_html_()
    assert "<script" not in without_images(html)
    assert "onerror=" not in re.sub(r"&lt;img .*?&gt;", "", html)
    assert "&lt;script&gt;alert(1)" in html
    assert html.count("<img") == len(images_of(html))


def test_without_vl_convert_there_is_the_table_of_phases_and_how_to_get_charts(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    html = stepscope.load_run(write_some(tmp_path))._repr_html_()
    assert "<img" not in html
    assert html.count("<table>") == 1
    for phase in ("data", "forward", "backward", "optimizer"):
        assert f'<th scope="row">{phase}</th>' in html
    assert "stepscope[report]" in html


def test_a_run_that_goes_on_and_one_without_a_step_are_shown_too(tmp_path):
    going_on = stepscope.load_run(write_some(tmp_path / "some", status="running"))
    assert "has not ended" in going_on._repr_html_()
    write_tables(tmp_path / "none", status="failed", reason="it did not begin")
    assert "it did not begin" in stepscope.load_run(tmp_path / "none")._repr_html_()


def test_a_loss_that_exploded_does_not_keep_the_charts_away(tmp_path):
    rows = [epoch_row(1, 2.0, loss="nan", accuracy="nan"), epoch_row(2, 4.0, loss="inf")]
    write_tables(tmp_path, [step(n, loss="nan") for n in range(1, 40)], rows)
    assert images_of(stepscope.load_run(tmp_path)._repr_html_())


def test_a_folder_that_is_no_run_is_refused_before_anything_is_shown(tmp_path):
    with pytest.raises(RequestError, match="is not a run folder"):
        stepscope.load_run(tmp_path)
