"""The demo compares every table."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from examples import demo, shop

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_the_demo_compares_every_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server and the replica are equal; a row less, and they are not."""
    assert demo.main() == 0
    true_tables = shop.true_tables
    monkeypatch.setattr(shop, "WORKLOAD", {})
    monkeypatch.setattr(
        shop, "true_tables", lambda server: [replace(t, rows=t.rows[1:]) for t in true_tables(server)]
    )
    assert demo.main() == 1
    assert "These differ from the server's own tables: public.baskets, public." in capsys.readouterr().out
