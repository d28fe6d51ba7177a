"""Settings of image folders: the shape that images are brought to, and what follows from `data`."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import RequestError
from stepscope.settings.load_settings import as_flags, validate

SIDES = st.integers(1, 8192)


@given(st.tuples(SIDES, SIDES, SIDES), st.sampled_from([",", "x", ", ", " x "]))
def test_a_shape_is_read_as_people_write_it(shape, between):
    assert validate({"input": between.join(map(str, shape))}).input == shape
    assert validate({"input": list(shape)}).input == shape


def test_a_shape_survives_the_record_and_the_command_line():
    spec = validate({"data": "folder", "input": "3,64,48"})
    again = validate(json.loads(json.dumps(spec.model_dump(mode="json"))))
    assert again == spec
    assert as_flags({"input": again.input, "workers": 2}) == "--input 3,64,48 --workers 2"


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "3", "3,64", "3,64,64,1", "3,0,64", "3,-1,64", "3,64.5,64", "a,b,c", "3,,64"),
        *("3,64,9999", "3,²,64", [3, 64], [3, 64.5, 64], [3, True, 64], 64, {"height": 64}),
    ],
    ids=str,
)
def test_what_is_no_shape_is_refused_with_an_example(wrong):
    with pytest.raises(RequestError, match=r"input: wanted .*, like 3,224,224; found"):
        validate({"input": wrong})


def test_a_folder_is_read_from_its_files_unless_another_source_is_named():
    assert validate({"data": "folder"}).source == "local"
    assert validate({"data": "folder", "source": "memory"}).source == "memory"
    assert validate({"data": "shapes"}).source == "memory"


@given(st.text(max_size=20) | st.lists(st.integers() | st.text(max_size=3), max_size=4))
def test_nothing_that_is_given_as_a_shape_breaks_the_reader(given_shape):
    with contextlib.suppress(RequestError):
        assert validate({"input": given_shape}).input is not None
