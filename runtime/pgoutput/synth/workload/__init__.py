"""Synthetic workloads: large deterministic streams for load tests, with the expected rows of each table."""

from pgoutput.synth.workload.definition import ColumnShape, Mix, Profile, Range, TableShape, Workload
from pgoutput.synth.workload.fit import fit_profile
from pgoutput.synth.workload.profiles import (
    MAX_SMALL as MAX_SMALL,
    PROFILES,
    all_messages as all_messages,
    default_profile as default_profile,
)
from pgoutput.synth.workload.writer import (
    Progress as Progress,
    write_capture_file,
    write_copy_data,
    write_recording,
)

__all__ = [
    "PROFILES",
    "ColumnShape",
    "Mix",
    "Profile",
    "Range",
    "TableShape",
    "Workload",
    "fit_profile",
    "write_capture_file",
    "write_copy_data",
    "write_recording",
]
