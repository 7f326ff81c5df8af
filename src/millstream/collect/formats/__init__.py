"""Body formats: JSON, lines, CSV, CloudEvents, compressed or not."""
