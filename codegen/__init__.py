"""Reads `spec/`, writes `generated/`.

The way of a spec through these modules: `yamlfile` (text to data with line numbers) → `model` (data to
typed records) → `load` (files to one `Spec`, or one error with file and line) → `rules` (what no type can
say) → `resolve` (the spec as one version sees it) → `layout` (wire order to reading and writing steps) →
`render` (templates, with `filters`, and formatting) → `files` (write, compare). `evolution` compares
versions and specs.

Nothing here imports `pgoutput`, and nothing there imports this.
"""
