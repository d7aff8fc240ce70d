"""Of the engine on a CPU and on a GPU: its workloads, accuracy, start and stalls."""
