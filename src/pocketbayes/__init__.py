"""pocketbayes."""
