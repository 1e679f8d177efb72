"""Synthetic workloads: large deterministic streams for load tests, with the expected rows of each table."""

from logicalrep.synth.workload.definition import Mix, Profile, Range, Workload
from logicalrep.synth.workload.fit import fit_profile
from logicalrep.synth.workload.profiles import (
    PROFILES,
    all_messages as all_messages,
    default_profile as default_profile,
)
from logicalrep.synth.workload.writer import (
    Progress as Progress,
    write_capture_file,
    write_copy_data as write_copy_data,
    write_recording,
)

__all__ = [
    "PROFILES",
    "Mix",
    "Profile",
    "Range",
    "Workload",
    "fit_profile",
    "write_capture_file",
    "write_recording",
]
