"""Accuracy against time and memory on a user's folder of images, in the ImageNet layout."""

from stepscope.experiments.labs.procedures.architectures_lab import investigate

__all__ = ["investigate"]
