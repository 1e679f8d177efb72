"""Type modifiers are computed and read as PostgreSQL does; expected ones are from pg_attribute.atttypmod."""

from __future__ import annotations

import pytest

from logicalrep._type_modifiers import (
    declared_modifier,
    modifier_suffix,
    numeric_modifier,
    numeric_precision,
    round_to_precision,
    string_length,
)


@pytest.mark.parametrize(
    ("kind", "numbers", "modifier", "suffix"),
    [
        ("numeric", (12, 2), 786438, "(12,2)"),
        ("numeric", (5,), 327684, "(5,0)"),
        ("numeric", (2, -3), 133121, "(2,-3)"),
        ("numeric", (1000, 1000), 65537004, "(1000,1000)"),
        ("length", (10,), 14, "(10)"),
        ("bits", (3,), 3, "(3)"),
        ("precision", (0,), 0, "(0)"),
    ],
)
def test_a_declared_modifier_is_shown_as_it_was_declared(
    kind: str, numbers: tuple[int, ...], modifier: int, suffix: str
) -> None:
    assert declared_modifier(kind, *numbers) == modifier
    assert modifier_suffix(kind, modifier) == suffix


@pytest.mark.parametrize("kind", ["none", "interval"])
def test_types_that_are_not_declared_with_numbers(kind: str) -> None:
    assert declared_modifier(kind, 3) is None


@pytest.mark.parametrize(("modifier", "suffix"), [(2147418115, "(3)"), (2147483647, ""), (-1, "")])
def test_the_precision_of_an_interval_is_the_lower_half(modifier: int, suffix: str) -> None:
    assert modifier_suffix("interval", modifier) == suffix


@pytest.mark.parametrize("kind", ["none", "numeric", "length", "bits", "precision", "interval"])
def test_no_modifier_has_no_suffix(kind: str) -> None:
    assert modifier_suffix(kind, -1) == ""


@pytest.mark.parametrize("modifier", [-1, 0, 3])
def test_a_numeric_without_a_valid_modifier_has_no_precision(modifier: int) -> None:
    assert numeric_precision(modifier) is None


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (38, 10), (1000, 1000), (1000, -1000)])
def test_precision_and_scale_round_trip(precision: int, scale: int) -> None:
    assert numeric_precision(numeric_modifier(precision, scale)) == (precision, scale)


def test_the_length_of_a_string() -> None:
    assert string_length(14) == 10
    assert string_length(-1) < 0


@pytest.mark.parametrize(
    ("microseconds", "digits", "rounded"),
    [
        (1_499_999, 0, 1_000_000),
        (1_500_000, 0, 2_000_000),
        (-1_500_000, 0, -2_000_000),
        (1_234_567, 3, 1_235_000),
        (1_234_567, 6, 1_234_567),
        (1_234_567, -1, 1_234_567),
    ],
)
def test_times_are_rounded_half_away_from_zero(microseconds: int, digits: int, rounded: int) -> None:
    assert round_to_precision(microseconds, digits) == rounded
