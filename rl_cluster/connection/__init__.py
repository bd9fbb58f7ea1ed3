"""Which Ray: attach to one, start one here, simulate one; and give it back."""
