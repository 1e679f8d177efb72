"""Commands that keep replicas and compare them with the source: `replicate`, `sync`, `verify` and `tables`.

Imports the folder `record`: `sync` also records, and `verify --repair` has the recorder copy rows again.
"""
