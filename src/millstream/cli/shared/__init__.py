"""Options, output and text that several commands use."""
