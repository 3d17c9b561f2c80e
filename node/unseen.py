"""Characters that nobody sees, or that turn others round: in what a stranger has written they are shown as escapes.

A fixed list: the controls of direction, joiners and marks without a shape of their own, blanks that are letters.
"""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0"
    "\U000e0000-\U000e0fff]"
)


def escape_unseen(text: str) -> str:
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)
