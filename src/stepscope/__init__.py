"""stepscope: where every millisecond, megabyte and joule of a training run goes."""

__version__ = "0.1.0"
