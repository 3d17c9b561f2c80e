"""The first import of `node`, `chain` and `ml`: ours are found, whatever of these names lies on the search path."""

from __future__ import annotations

import os
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def claim_names() -> None:
    """Imports our packages, unless they are imported already. Raises ImportError where a foreign module has such a
    name."""
    sys.path.insert(0, _ROOT)
    try:
        from node.host import child
    except ImportError as error:
        taken = getattr(sys.modules.get("node"), "__file__", None)
        raise ImportError(f"expected 'node' to be fednode's package, got {taken}; give that another name") from error
    finally:
        sys.path.remove(_ROOT)
    child.claim_names()
