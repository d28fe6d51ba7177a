"""The files and columns of the run folder: the contract between writers and readers.

Readers go by name. An empty field means unknown, never 0.
"""

from __future__ import annotations

from stepscope.records.types import EpochRow

SCHEMA = 1

RUN = "run.json"
SWEEP = "sweep.json"
TRIALS = "trials"  # a sweep's runs
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
RECORDS = "records.csv"
TELEMETRY = "telemetry.csv"
ENERGY = "energy.csv"  # raw readings of sensors
ENERGY_EVENTS = "energy_"  # prefix of events on energy sensors
EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint.pt"
EARLIER_CHECKPOINT = "checkpoint.earlier.pt"
RANKS = "ranks"  # the ranks of a distributed run, a folder each
THROTTLING_EVENTS = "throttling"  # prefix of events on throttling
PEER_LOST = "peer_lost"  # a rank that ended because another one had

PENDING = "pending"  # a trial that has not been run
RUNNING = "running"
COMPLETED = "completed"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "out_of_memory"
FAILED = "failed"
UNKNOWN = "unknown"  # of a record that does not say

# The detail of a step. Only full ones have phases.
FULL = "full"
OFF = "off"  # without measuring, to determine its cost
LAYERS = "layers"  # with hooks on every layer
COUNTERS = "counters"  # with hardware counters read at every phase
OPERATIONS = "operations"  # with its operations counted

# In the order within a step.
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
# The same of an asynchronous device, which has nothing to do while the loop waits for data.
DEVICE_PHASES = ("idle", *PHASES[1:])

STEP_COLUMNS = (
    *("epoch", "step", "start_s", "samples"),
    *("data_s", "load_s", "transfer_s", "forward_s", "backward_s", "optimizer_s", "other_s"),
    *("step_s", "loss", "load_cpu_s", "transfer_device_s", "forward_device_s"),
    *("backward_device_s", "optimizer_device_s", "idle_device_s", "load_start_s", "load_worker"),
    *("detail", "communication_s", "other_device_s"),
)
EPOCH_COLUMNS = tuple(EpochRow.__annotations__)
RECORD_COLUMNS = ("type", "epoch", "start", "loading", "duration", "value1", "value2")
TELEMETRY_COLUMNS = (
    *("time_s", "pss_bytes", "rss_bytes", "workers_private_bytes", "workers", "swap_bytes"),
    *("available_bytes", "main_cpu_s", "workers_cpu_s", "read_bytes", "major_faults"),
    *("pressure_cpu", "pressure_io", "pressure_memory", "cpu_mhz", "device_memory_bytes"),
    *("device_percent", "device_mhz", "power_w", "temperature_c", "machine_cpu_s"),
)
ENERGY_COLUMNS = ("time_s", "sensor", "energy_j", "power_w")
# What every row of a table has; one without it is left out.
ALWAYS_KNOWN = {
    STEPS: ("epoch", "step", "step_s"),
    EPOCHS: ("epoch", "split"),
    TELEMETRY: ("time_s",),
    ENERGY: ("time_s", "sensor"),
}
COLUMNS = {
    STEPS: STEP_COLUMNS,
    EPOCHS: EPOCH_COLUMNS,
    RECORDS: RECORD_COLUMNS,
    TELEMETRY: TELEMETRY_COLUMNS,
    ENERGY: ENERGY_COLUMNS,
}

WHOLE_NUMBERS = frozenset(
    {
        *("epoch", "step", "samples", "load_worker", "type", "workers", "major_faults"),
        *("pss_bytes", "rss_bytes", "workers_private_bytes", "swap_bytes", "available_bytes"),
        *("read_bytes", "device_memory_bytes"),
    }
)
WORDS = frozenset({"split", "detail", "sensor"})
THROTTLED = "throttled"  # a column of frames, computed from the events
MAY_BE_INFINITE = frozenset({"loss"})  # of a training that diverges
YES_OR_NO = frozenset({THROTTLED})
