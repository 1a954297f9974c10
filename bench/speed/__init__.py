"""What the speed measurements share: sides in processes of their own, turns, spreads, memory, the machine's peak."""
