"""How agents write their sessions: one file for each, found by its name."""
