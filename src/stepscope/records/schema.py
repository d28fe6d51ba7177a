"""The run folder's files and columns: the contract between what records and what reads.

Columns are only ever appended, and readers go by name. An empty field means unknown, never 0.
"""

from __future__ import annotations

SCHEMA = 1

RUN = "run.json"
SWEEP = "sweep.json"
TRIALS = "trials"  # a sweep's runs
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
RECORDS = "records.csv"
TELEMETRY = "telemetry.csv"
ENERGY = "energy.csv"  # readings of sensors, as they came
ENERGY_EVENTS = "energy_"  # how events begin that say what the sensors are and which one failed
EVENTS = "events.jsonl"
CHECKPOINT = "checkpoint.pt"
RANKS = "ranks"  # a distributed run's processes, each with a folder of its own
THROTTLING_EVENTS = "throttling"  # how events begin that say what held the machine back, and when
PEER_LOST = "peer_lost"  # the event of a rank that ended because another one had

PENDING = "pending"  # of a trial that a sweep has still to make
RUNNING = "running"
COMPLETED = "completed"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "out_of_memory"
FAILED = "failed"

# What was measured of a step. Only full ones have phases.
FULL = "full"
OFF = "off"  # the meter was off, to weigh it
LAYERS = "layers"  # every layer had hooks
COUNTERS = "counters"  # the processor's counters were read at every phase

# In the order in which they follow each other in a step.
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")

STEP_COLUMNS = (
    "epoch",
    "step",
    "start_s",
    "samples",
    "data_s",
    "load_s",
    "transfer_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "other_s",
    "step_s",
    "loss",
    "load_cpu_s",
    "transfer_device_s",
    "forward_device_s",
    "backward_device_s",
    "optimizer_device_s",
    "idle_device_s",
    "load_start_s",
    "load_worker",
    "detail",
    "communication_s",
)
EPOCH_COLUMNS = (
    "epoch",
    "split",
    "start_s",
    "loader_start_s",
    "loader_stop_s",
    "loading_s",
    "training_s",
    "total_s",
    "loss",
    "accuracy",
    "top5",
    "samples",
    "samples_per_s",
)
RECORD_COLUMNS = ("type", "epoch", "start", "loading", "duration", "value1", "value2")
TELEMETRY_COLUMNS = (
    "time_s",
    "pss_bytes",
    "rss_bytes",
    "workers_private_bytes",
    "workers",
    "swap_bytes",
    "available_bytes",
    "main_cpu_s",
    "workers_cpu_s",
    "read_bytes",
    "major_faults",
    "pressure_cpu",
    "pressure_io",
    "pressure_memory",
    "cpu_mhz",
    "device_memory_bytes",
    "device_percent",
    "device_mhz",
    "power_w",
    "temperature_c",
)
ENERGY_COLUMNS = ("time_s", "sensor", "energy_j", "power_w")
COLUMNS = {
    STEPS: STEP_COLUMNS,
    EPOCHS: EPOCH_COLUMNS,
    RECORDS: RECORD_COLUMNS,
    TELEMETRY: TELEMETRY_COLUMNS,
    ENERGY: ENERGY_COLUMNS,
}

WHOLE_NUMBERS = frozenset(
    {
        "epoch",
        "step",
        "samples",
        "load_worker",
        "type",
        "pss_bytes",
        "rss_bytes",
        "workers_private_bytes",
        "workers",
        "swap_bytes",
        "available_bytes",
        "read_bytes",
        "major_faults",
        "device_memory_bytes",
    }
)
WORDS = frozenset({"split", "detail", "sensor"})
THROTTLED = "throttled"  # of a step, in frames: computed from the events
YES_OR_NO = frozenset({THROTTLED})
