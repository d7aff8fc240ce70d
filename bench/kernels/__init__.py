"""Of single kernels, on a GPU: their cases, checks and tuning."""
