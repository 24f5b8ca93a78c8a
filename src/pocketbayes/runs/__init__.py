"""What makes long work durable: atomic files, checkpoints, progress and seeded randomness."""
