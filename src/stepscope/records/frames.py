"""A table of a record as a pandas or Polars data frame.

The type of a column depends on its name only: integers, strings, booleans, else floats. So an empty
column has the same type as in every other run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingExtraError
from stepscope.records import schema

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped, unused-ignore]
    import polars


def to_pandas(columns: Mapping[str, Sequence[Any]]) -> pandas.DataFrame:
    """Return a pandas frame. Unknown is `<NA>` in integer columns, NaN in float columns."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise _missing("pandas", error) from error
    return pandas.DataFrame(
        {
            name: pandas.Series(values, dtype=_kind(name, "Int64", "string", "boolean", "float64"))
            for name, values in columns.items()
        }
    )


def to_polars(columns: Mapping[str, Sequence[Any]]) -> polars.DataFrame:
    """Return a Polars frame. Unknown is null; a NaN loss stays NaN."""
    try:
        import polars
    except ModuleNotFoundError as error:
        raise _missing("polars", error) from error
    kinds = (polars.Int64, polars.String, polars.Boolean, polars.Float64)
    return polars.DataFrame(
        [polars.Series(name, values, _kind(name, *kinds)) for name, values in columns.items()]
    )


def _kind(column: str, whole: Any, word: Any, yes_or_no: Any, number: Any) -> Any:
    if column in schema.WHOLE_NUMBERS:
        return whole
    if column in schema.YES_OR_NO:
        return yes_or_no
    return word if column in schema.WORDS else number


def _missing(library: str, error: ModuleNotFoundError) -> MissingExtraError:
    return MissingExtraError(f"a frame of {library}", error.name or library, "frames")
