"""The drawing child: draws the first parameters of a run into a file, and ends. It loads torch, as no daemon does.

argument   the file
in         JSON: model, input shape, number of classes, seed, and the names of the plugins that may be imported
out        why there are none: the last line of stderr, with exit code 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ml.clients.build import make_initial_aggregate
from ml.errors import MlError
from ml.payload import encode_arrays
from ml.plugins import Plugins


def main() -> int:
    asked = json.load(sys.stdin)
    plugins = Plugins.of(asked["plugins"])
    try:
        drawn = make_initial_aggregate(
            asked["model"], asked["shape"], asked["num_classes"], asked["seed"], plugins=plugins
        )
    except MlError as error:
        sys.stderr.write(f"\n{error}\n")
        return 1
    Path(sys.argv[1]).write_bytes(encode_arrays(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
