"""Coding-agent traces: recorded sessions of Claude Code and Codex, as rows, in a store, and what is learnt of them."""
