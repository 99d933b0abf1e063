"""State: what a stream must remember to go on as if it had never stopped."""
