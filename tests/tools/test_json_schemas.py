"""The JSON Schemas: as the types are, and strict enough to see a fault."""

import pytest
from checked_schemas import check
from json_schemas import PAGE, to_text


def test_the_schemas_in_the_docs_are_those_of_the_types():
    current = PAGE.read_text(encoding="utf-8")
    assert current == to_text(), "run: python tools/json_schemas.py"


EVENT = {"event": "batch", "time_s": 1.5, "bytes": 12}


def test_an_event_as_its_type_says_is_accepted():
    check("events.jsonl", EVENT)


@pytest.mark.parametrize(
    "changed", [{"bytes": "12"}, {"bytes": None}, {"time_s": "now"}, {"event": "batches"}]
)
def test_a_value_of_another_type_is_seen(changed):
    with pytest.raises(AssertionError, match=r"events.jsonl: "):
        check("events.jsonl", {**EVENT, **changed})


def test_a_key_without_a_type_is_seen():
    with pytest.raises(AssertionError, match=r"events.jsonl: "):
        check("events.jsonl", {**EVENT, "samples": 3})


def test_a_missing_key_is_seen():
    with pytest.raises(AssertionError, match="error"):
        check("answer of error", {"exit_code": 2})
