"""AWS's signature of a request, version 4, for calls to EC2 by a process that has no SDK.

Standard library only and no imports from this package: the reaper runs this file without the rest (see _reaper.py).
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import quote

__all__ = ["TYPE", "form", "signed"]

VERSION = "2016-11-15"
TYPE = "application/x-www-form-urlencoded; charset=utf-8"


def form(action: str, parameters: Mapping[str, str]) -> bytes:
    """A call in EC2's query language."""
    words = {"Action": action, "Version": VERSION, **parameters}
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in words.items()).encode()


def signed(
    body: bytes, *, host: str, region: str, credentials: Mapping[str, str | None], now_unix_s: float
) -> dict[str, str]:
    """The headers of a POST to ``/`` of EC2.

    Args:
        host: As in the request's Host, with the port where it is not the usual one.
        credentials: ``key``, ``secret``, and ``token`` where they are temporary.
    """
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_unix_s))
    headers = {"content-type": TYPE, "host": host, "x-amz-date": at}
    if token := credentials.get("token"):
        headers["x-amz-security-token"] = token
    names = ";".join(sorted(headers))
    canonical = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    request = f"POST\n/\n\n{canonical}\n{names}\n{hashlib.sha256(body).hexdigest()}"
    scope = f"{at[:8]}/{region}/ec2/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{credentials['secret']}".encode()
    for word in (at[:8], region, "ec2", "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    authorization = (
        f"AWS4-HMAC-SHA256 Credential={credentials['key']}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return {**headers, "authorization": authorization}
