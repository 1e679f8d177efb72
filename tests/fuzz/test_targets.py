"""The fuzz targets accept their seeds and mutations of them."""

from __future__ import annotations

from random import Random

import pytest

from logicalrep import compiled
from tests.codec.fuzz import MUTATIONS
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(compiled.kernel is None, reason=f"logicalrep runs {compiled.HOW}")

COUNT = 100


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_its_seeds_and_mutations(name: str) -> None:
    random = Random(name)
    seeds = list(TARGETS[name].seeds())
    for seed in random.sample(seeds, min(COUNT, len(seeds))):
        damaged = bytearray(seed)
        random.choice(MUTATIONS)(random, damaged, random.choice(seeds))
        for data in seed, bytes(damaged):
            TARGETS[name].run(data)
