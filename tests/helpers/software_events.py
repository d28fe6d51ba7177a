"""Events that the kernel counts by itself: every machine has them, whatever its processor shows."""

from stepscope.hardware.perf_events import Event

_KIND = 1  # PERF_TYPE_SOFTWARE, of include/uapi/linux/perf_event.h
SOFTWARE = {"task_clock_ns": Event(_KIND, 1), "page_faults": Event(_KIND, 2)}
