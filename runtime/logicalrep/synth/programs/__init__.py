"""Programs: sequences of database operations as data, and random programs."""

from logicalrep.synth.programs.definition import (
    Program as Program,
    ProgramRunner as ProgramRunner,
    Step as Step,
    TableDefinition as TableDefinition,
)
from logicalrep.synth.programs.generator import (
    Operations as Operations,
    RandomSteps as RandomSteps,
    generate_program as generate_program,
    program_of_all_kinds as program_of_all_kinds,
)
