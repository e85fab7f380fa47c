"""`perdure outbox`: events for other systems."""
