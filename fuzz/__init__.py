"""Files as an attacker would write them: parts that lie, under checksums that are right."""
