"""Commands that keep replicas and compare them with the source: `replicate`, `sync`, `verify` and `tables`.

This package imports the package `record`, because `sync` also records, and `verify --repair` has the recorder
copy rows again.
"""
