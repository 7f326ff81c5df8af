"""`millstream run`: starts the tiers as processes, restarts those that die, stops them in order."""
