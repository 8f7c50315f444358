"""A configuration can be shown to others."""

from __future__ import annotations

from rayroll.redact import redacted


def test_what_looks_secret_never_leaves() -> None:
    values = {
        "api_key": "a",
        "WANDB_API_KEY": "b",
        "nested": [{"accessKey": "c", "auth_token": "d"}],
        "policy": "https://user:e@example.com/v1",
        "env": {"ANYTHING": "f"},
        "max_tokens": 4096,
        "tasks": "repo_fix",
        "target_actions": 150,
    }
    assert redacted(values) == {
        "api_key": "<redacted>",
        "WANDB_API_KEY": "<redacted>",
        "nested": [{"accessKey": "<redacted>", "auth_token": "<redacted>"}],
        "policy": "https://<redacted>@example.com/v1",
        "env": "<redacted>",
        "max_tokens": 4096,
        "tasks": "repo_fix",
        "target_actions": 150,
    }
