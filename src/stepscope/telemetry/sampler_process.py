"""Sample another process until it, or the standard input, ends; print the result as JSON."""

from __future__ import annotations

import argparse
import json
import select
import sys
from pathlib import Path

import psutil

from stepscope.records import schema
from stepscope.records.csv_log import CsvLog
from stepscope.records.folder_sync import FolderSync
from stepscope.records.run_folder import RunFolder
from stepscope.records.types import SamplerResult
from stepscope.telemetry.telemetry_sampler import CpuShare, Sampler


def main() -> None:
    """Sample until the process ends or the input is closed."""
    parser = argparse.ArgumentParser(prog="stepscope.telemetry.sampler_process")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--origin-ns", type=int, required=True)
    args = parser.parse_args()
    own_cpu = CpuShare()
    with FolderSync(RunFolder(args.folder)), CsvLog(args.folder / schema.TELEMETRY) as log:
        sampler = Sampler(psutil.Process(args.process), log, args.origin_ns)
        while sampler.sample() is not None:
            closed, _, _ = select.select([sys.stdin], [], [], sampler.pause_s)
            if closed:
                sampler.sample(is_last=True)
                break
    found: SamplerResult = {
        "peak_memory_bytes": sampler.peak_memory_bytes,
        "beside_cpu_share": own_cpu.share(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
