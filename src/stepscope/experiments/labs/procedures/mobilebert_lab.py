"""Accuracy against time and memory of MobileBERT, as published and small, on a user's texts."""

from stepscope.experiments.labs.procedures.architectures_lab import investigate

__all__ = ["investigate"]
