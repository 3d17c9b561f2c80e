from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class FinalisedBlock(_message.Message):
    __slots__ = ("block", "certificate")
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    block: bytes
    certificate: bytes
    def __init__(self, block: _Optional[bytes] = ..., certificate: _Optional[bytes] = ...) -> None: ...
