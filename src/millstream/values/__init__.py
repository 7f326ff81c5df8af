"""Values that all tiers share: events, positions, receipts, reports, hidden columns."""
