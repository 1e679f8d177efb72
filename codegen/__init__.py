"""The code generator: reads `spec/`, writes `generated/`.

The modules in the order in which they process a spec: `yamlfile` (YAML with line numbers), `model` (types of
the spec), `load` (reads all files into a `Spec`), `rules` (checks beyond types), `resolve` (the messages
and fields of one version), `layout` (steps that read and write messages), `render` (templates and
formatting, with `filters`), `files` (writes or compares the output). `evolution` compares versions and specs.

The generator does not import `logicalrep`, and `logicalrep` does not import the generator.
"""
