"""The targets of fuzzing. The campaign (`python -m tests.fuzz`), the kept corpus and Hypothesis share their checks."""

from __future__ import annotations

from collections.abc import Mapping

from chain import codec
from chain.errors import DecodeError
from chain.hints import MAX_HINT_BYTES, decode_hint, encode_hint
from chain.published import MAX_PUBLISHED_BYTES, decode_published, encode_published
from fuzz.array_bytes import check_arrays, check_checkpoint, make_arrays, make_checkpoints
from fuzz.chain_bytes import (
    check_block,
    check_evidence,
    check_export,
    make_blocks,
    make_certificates,
    make_contributions,
    make_evidences,
    make_exports,
    make_hints,
    make_published,
    make_votes,
)
from fuzz.claims import Target, takes_only_its_own
from fuzz.data_files import (
    HF_WORDS,
    PARQUET_WORDS,
    check_directory,
    check_dropped,
    check_parquet,
    is_same_directory,
    is_same_parquet,
    make_directories,
    make_dropped,
    make_parquets,
)
from fuzz.files import check_config, check_genesis, check_yaml, make_configs, make_geneses, make_yamls
from fuzz.joining import check_file, check_request, make_files, make_requests
from fuzz.model_files import (
    ONNX_WORDS,
    WORDS,
    check_onnx,
    check_weights,
    is_same_weights,
    make_told_models,
    make_weights,
)
from fuzz.pushed import check_push, check_reply, make_pushes, make_replies
from fuzz.wire_bytes import check_frame, check_status, make_frames, make_statuses
from node.web.decoding_child import MEMORY_BYTES

YAML_WORDS = ("true", "null", "~", "0x7f", "1e309", ".inf", '"\\U0010FFFF"', "&a", "*a", "!!int", "---", "{", "[", "- ")

TARGETS: Mapping[str, Target] = {
    "contribution": Target(
        takes_only_its_own(codec.decode_contribution, codec.encode_contribution, DecodeError),
        make_contributions,
        codec.MAX_CONTRIBUTION_BYTES + 1,
    ),
    "block": Target(check_block, make_blocks, 4096),
    "vote": Target(
        takes_only_its_own(codec.decode_vote, codec.encode_vote, DecodeError), make_votes, codec.MAX_VOTE_BYTES + 1
    ),
    "hint": Target(takes_only_its_own(decode_hint, encode_hint, DecodeError), make_hints, MAX_HINT_BYTES + 1),
    "measures": Target(
        takes_only_its_own(decode_published, encode_published, DecodeError),
        make_published,
        MAX_PUBLISHED_BYTES + 1,
        ('"auc":', '"n":', "-1", "0", "1e9", "{", "}", "[[[["),
    ),
    "certificate": Target(
        takes_only_its_own(codec.decode_certificate, codec.encode_certificate, DecodeError), make_certificates, 2048
    ),
    "evidence": Target(check_evidence, make_evidences, 4096),
    "arrays": Target(
        check_arrays,
        make_arrays,
        4096,
        ('"dtype":"', '"shape":[', '"data_offsets":[', "F16", "F32", "F64", "I64", "U8", "BF16", "],", "},"),
    ),
    "checkpoint": Target(
        check_checkpoint, make_checkpoints, 4096, ('"checkpoint/height"', '"checkpoint/digest"', '"state/')
    ),
    "export": Target(check_export, make_exports, 4096, ("fnexport",)),
    "status": Target(check_status, make_statuses, 4096),
    "frame": Target(check_frame, make_frames, 4096, ('"attachments":{', "NaN", "Infinity", "[[[[", '"offers":[')),
    "yaml": Target(check_yaml, make_yamls, 256, YAML_WORDS),
    "genesis": Target(
        check_genesis, make_geneses, 2048, ("null", "true", "1e308", "9" * 30, '"fedavg"', '"mpfedcl"', '"resnet18"')
    ),
    "config": Target(check_config, make_configs, 1024, YAML_WORDS),
    "join_request": Target(check_request, make_requests, 4096),
    "join_file": Target(check_file, make_files, 8192, ("null", "true", "NaN", "1e309", "9" * 30, "[[[[", '"marks":[')),
    "push": Target(check_push, make_pushes, 8192),
    "reply": Target(check_reply, make_replies, 8192),
    "dropped": Target(check_dropped, make_dropped, 4096, memory_bytes=MEMORY_BYTES),
    "parquet": Target(check_parquet, make_parquets, 8192, PARQUET_WORDS, MEMORY_BYTES, is_same_parquet),
    "hf": Target(check_directory, make_directories, 8192, HF_WORDS, MEMORY_BYTES, is_same_directory),
    "weights": Target(check_weights, make_weights, 4096, WORDS, MEMORY_BYTES, is_same_weights),
    "onnx": Target(check_onnx, make_told_models, 4096, ONNX_WORDS, MEMORY_BYTES),
}
