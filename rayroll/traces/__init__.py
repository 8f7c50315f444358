"""Traces of coding agents: recorded sessions as rows, in a store, and what is learnt from them."""
