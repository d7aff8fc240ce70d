"""Who calls: API keys now, people later."""
