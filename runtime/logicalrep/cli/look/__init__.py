"""Commands that show streams and recordings: `decode`, `inspect`, `check`, `spec` and `segments`."""
