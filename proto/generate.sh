#!/bin/sh
# Writes node/pb/ from proto/: `proto/generate.sh [folder that holds node/pb, by default the repository]`.
# The virtual path node/pb is what makes the generated imports work, so a .proto imports "node/pb/common.proto".
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
out=${1:-.}
scripts=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
"$python" -m grpc_tools.protoc -Inode/pb=proto \
    --plugin=protoc-gen-mypy_grpc="$scripts/protoc-gen-mypy_grpc" \
    --python_out="$out" --grpc_python_out="$out" --pyi_out="$out" --mypy_grpc_out="quiet:$out" proto/*.proto
# What is new is remembered; what has changed under an old number is refused.
[ "$out" != . ] || PYTHONPATH=. "$python" proto/fields.py --add
