"""Code that several groups of commands use: options, configuration files, output, signals and metrics."""
