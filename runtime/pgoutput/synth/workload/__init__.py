"""Synthetic workloads: large deterministic streams for load tests, with the expected rows of each table."""

from pgoutput.synth.workload.definition import Mix, Range, Workload
from pgoutput.synth.workload.writer import Progress, write_capture_file, write_copy_data, write_recording

__all__ = [
    "Mix",
    "Progress",
    "Range",
    "Workload",
    "write_capture_file",
    "write_copy_data",
    "write_recording",
]
