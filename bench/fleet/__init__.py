"""Of routing and of the fleet over a day and at scale."""
