"""Text from bytes that are no UTF-8, such as the name of a file, changed so that it can be shown, logged and sent."""

from __future__ import annotations

import re

_UNDECODED = re.compile("[\ud800-\udfff]")  # code points by which Python reads bytes that are no UTF-8


def escape_undecoded(text: str) -> str:
    r"""Returns `text` with each byte that was no UTF-8 written as `\xe9`."""
    return text if text.isascii() else _UNDECODED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    point = ord(found[0])
    return f"\\x{point - 0xDC00:02x}" if 0xDC80 <= point <= 0xDCFF else f"\\u{point:04x}"
