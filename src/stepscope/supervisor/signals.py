"""Signals that stop or pause a run, taken as requests while its folder is open."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType

import psutil

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SignalHandler = Callable[[int, FrameType | None], object] | signal.Handlers


@dataclass
class StopSignals:
    """Counts the signals that ask to stop or to pause."""

    stops: int = 0
    obeyed: int = 0
    pauses: int = 0
    last: int = signal.SIGTERM

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Count a request to stop."""
        self.stops += 1
        self.last = number

    def pause(self, number: int, frame: FrameType | None) -> None:
        """Count a request to pause (Ctrl-Z)."""
        self.pauses += 1


@contextlib.contextmanager
def stop_signals(*, pausing: bool = True) -> Iterator[StopSignals]:
    """Count signals instead of obeying them; a nested call returns the same counter."""
    counter = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    signals = counter if isinstance(counter, StopSignals) else StopSignals()
    handlers: dict[int, SignalHandler] = dict.fromkeys(STOP_SIGNALS, signals.stop)
    if pausing:
        handlers[signal.SIGTSTP] = signals.pause
    with handling(handlers):
        yield signals


@contextlib.contextmanager
def handling(handlers: Mapping[int, SignalHandler]) -> Iterator[None]:
    """Set signal handlers, and restore the previous ones at the end."""
    before = {
        number: signal.signal(number, handler)
        for number, handler in handlers.items()
        if signal.getsignal(number) is not signal.SIG_IGN  # nohup ignores it on purpose
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def pause_with_tree(pid: int) -> None:
    """Pause this process and a child with all its descendants, as Ctrl-Z does, until SIGCONT."""
    paused = list(suspend_tree(pid))
    os.kill(os.getpid(), signal.SIGSTOP)
    for process in reversed(paused):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def suspend_tree(pid: int) -> Iterator[psutil.Process]:
    """Suspend a process and its descendants, parents first."""
    try:
        process = psutil.Process(pid)
        process.suspend()
        children = process.children()
    except psutil.NoSuchProcess:  # it may just have ended
        return
    yield process
    for child in children:
        yield from suspend_tree(child.pid)
