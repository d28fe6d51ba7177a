"""Predictions without running: what a step will hold, what a run will take.

Nothing here knows of records. What a prediction rests on (counted, calibrated, assumed) rides along
with it.
"""
