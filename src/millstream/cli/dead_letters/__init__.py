"""`rejected`, `late` and `failed`: list, show, send again and drop dead letters."""
