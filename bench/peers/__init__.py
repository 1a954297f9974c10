"""The parts of `bench/peers.py`: cases, environments, one driver per trainer, and our side."""
