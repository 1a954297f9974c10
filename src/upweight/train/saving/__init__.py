"""What a run leaves behind, and how it goes on: the run folder, its lock, checkpoints, and where a run stands."""
