"""Commands that find problems in operation: `doctor`, `status` and `config`."""
