"""What a model takes and gives on a card, before anything is loaded. Pure arithmetic: no torch, no card needed."""
