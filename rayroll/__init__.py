"""rayroll: a distributed rollout executor for coding-agent RL that measures, and removes, the infrastructure tax."""
