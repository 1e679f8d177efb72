"""Programs: sequences of database operations as data, and random programs."""

from pgoutput.synth.programs.definition import (
    Program,
    ProgramRunner,
    Step,
    TableDefinition,
    Values,
    run_program,
)
from pgoutput.synth.programs.generator import (
    LABELS,
    SCHEMA,
    Operations,
    RandomSteps,
    generate_program,
    program_of_all_kinds,
)

__all__ = [
    "LABELS",
    "SCHEMA",
    "Operations",
    "Program",
    "ProgramRunner",
    "RandomSteps",
    "Step",
    "TableDefinition",
    "Values",
    "generate_program",
    "program_of_all_kinds",
    "run_program",
]
