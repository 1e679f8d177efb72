"""What clients ask in SQL: look-ups, settings, slots. There are catalogs, and no tables."""
