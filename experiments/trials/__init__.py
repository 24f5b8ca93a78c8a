"""What a machine does to a run: kills, full disks, folders that vanish, many at once."""
