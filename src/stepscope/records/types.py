"""The types of everything that crosses a boundary: files, messages, answers.

`run.json`, its summary, the lines of `events.jsonl`, the messages between processes and the JSON
answers of commands are plain JSON values. Each shape has one type here, under the heading of the
file or command that it belongs to. A key that may be missing is `NotRequired`; a figure that may
be unknown is `| None`. JSON Schemas are generated from these types (`tools/json_schemas.py`).
"""

from __future__ import annotations

# --- run.json: the record of a run ----------------------------------------------------------------


# --- run.json: environment and conditions of the machine ------------------------------------------


# --- run.json: summary ----------------------------------------------------------------------------


# --- summary: memory forecast and bill ------------------------------------------------------------


# --- summary: energy, throttling ------------------------------------------------------------------


# --- events.jsonl ---------------------------------------------------------------------------------


# --- messages between processes -------------------------------------------------------------------


# --- answers: trace and run, compare, report ------------------------------------------------------


# --- sweep.json, trials and answers of sweep ------------------------------------------------------


# --- answers: workers, max-batch, bottleneck, scale -----------------------------------------------


# --- lab.json and answers of lab ------------------------------------------------------------------


# --- answers: summary, accel ----------------------------------------------------------------------


# --- answers: doctor, data ------------------------------------------------------------------------
