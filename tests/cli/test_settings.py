"""``--set``: what may be said, and how it is refused."""

from __future__ import annotations

import pytest

from rayroll.cli._settings import settings
from rayroll.errors import ConfigError


def test_values_are_json_where_they_can_be_and_text_elsewhere() -> None:
    given = ["docker.mirror=10.0.0.5:5000", 'docker.tmpfs_mib={"/tmp": 64}', "local.rootfs=host", "docker.runtime=a=b"]
    assert settings(given) == {
        "docker": {"mirror": "10.0.0.5:5000", "tmpfs_mib": {"/tmp": 64}, "runtime": "a=b"},
        "local": {"rootfs": "host"},
    }


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("docker.mirror", "KIND.FIELD=VALUE"),
        ("mirror=x", "KIND.FIELD=VALUE"),
        (".mirror=x", "KIND.FIELD=VALUE"),
        ("dokcer.mirror=x", "docker"),
        ("docker.miror=x", "mirror"),
        ("docker.control_threads=many", "control_threads"),
    ],
)
def test_what_is_no_field_is_refused_with_what_would_be(text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        settings([text])
