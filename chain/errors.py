"""The errors of a chain, each by whose fault it is.

ChainError
 ├ EncodeError          our own object does not fit its layout: a bug here
 ├ DecodeError          bytes are not an encoding of the object: penalise the sender
 ├ InvalidKey           wrong length, small order or not canonical: refuse the key
 ├ InvalidSignature     penalise the sender
 ├ GenesisError         the operator's file is wrong; `path` names the field
 ├ InvalidJoinRequest   a line by which nobody can join: show the reason to whoever passed it on
 ├ InvalidJoinFile      a file from which nobody can join
 ├ ValidationError      a well-formed object breaks a rule
 │  ├ NotAMember, WrongHeight
 │  ├ UnknownParent     fetch and retry
 │  ├ OffTheWay         a block that does not lead to the checkpoint: somebody has another history
 │  ├ InvalidSeal, InvalidDifficulty, InvalidTime, InvalidContribution, InvalidBody, InvalidAggregate
 │  ├ InvalidCertificate, InvalidState
 │  ├ InvalidEvidence
 │  └ InvalidChange     a change that is not valid in its state
 │     └ LacksConsent   too few members have approved it so far
 └ StoreError           stop signing, stay readable
    ├ StoreCorrupted    names what and where
    │  └ BlobCorrupted  names the file: peers can serve it again
    │     └ BlobRowCorrupted  names the row, likewise
    ├ StoreLocked       another process holds the data directory
    ├ StoreMismatch     another genesis or schema version
    ├ StoreFull         the disk is full
    ├ StoreForbidden    the directory or a file in it may not be used
    ├ BlobMissing       no blob of that digest is held
    └ SlotTaken         this slot was signed before; `stored` holds the row
"""

from __future__ import annotations

from typing import Self


def _show(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


class ChainError(Exception):
    """An error of `chain`. `what`, `expected` and `got` are set if the error is a difference of two values."""

    what: str = ""
    expected: str = ""
    got: str = ""

    @classmethod
    def differs(cls, what: str, expected: object, got: object) -> Self:
        """Makes an error with the usual message: what, the expected and the actual value; bytes in hex."""
        error = cls(f"{what}: expected {_show(expected)}, got {_show(got)}")
        error.what, error.expected, error.got = what, _show(expected), _show(got)
        return error


class EncodeError(ChainError, ValueError):
    """An object does not fit its layout. Objects that were decoded always fit."""


class DecodeError(ChainError):
    """Bytes are not the canonical encoding of the object they should be."""


class InvalidKey(ChainError):
    """A public key that must not become an identity, or a private key that cannot be read."""


class InvalidSignature(ChainError):
    """A signature that its key did not make over these bytes."""


class GenesisError(ChainError):
    """A genesis field is missing, unknown or out of range. `path` is dotted, such as `pow.difficulty`."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class InvalidJoinRequest(ChainError):
    """A join request that is not whole, not for this chain, or not signed by the key that it names."""


class InvalidJoinFile(ChainError):
    """A join file that is not whole, or whose parts do not belong together."""


class ValidationError(ChainError):
    """A well-formed object breaks a rule of the chain."""


class NotAMember(ValidationError):
    """The author has no seat in the state that judges this, or is suspended where that matters."""


class WrongHeight(ValidationError):
    """The object belongs to another height."""


class UnknownParent(ValidationError):
    """The block does not extend the given parent."""


class OffTheWay(ValidationError):
    """The block does not lead to the checkpoint that this node joined by."""


class InvalidSeal(ValidationError):
    """The block id lacks the work its difficulty asks for, or is not the id of its header."""


class InvalidDifficulty(ValidationError):
    """The header names another difficulty than the rule gives."""


class InvalidTime(ValidationError):
    """The header's times run backwards."""


class InvalidContribution(ValidationError):
    """A contribution breaks a rule, alone or in the body that holds it."""


class InvalidBody(ValidationError):
    """The body is not the one the header commits to, or not one that this height may have."""


class InvalidAggregate(ValidationError):
    """The header's aggregate is not what the contributions give."""


class InvalidCertificate(ValidationError):
    """The signatures do not prove that the block is final."""


class InvalidState(ValidationError):
    """The header commits to another state than the chain gives, or to another protocol."""


class InvalidChange(ValidationError):
    """A change that is not valid in the state before it."""


class LacksConsent(InvalidChange):
    """A change that is valid and has too few approvals."""


class InvalidEvidence(ValidationError):
    """The two objects do not prove that one author signed two things for one slot."""


class StoreError(ChainError):
    """The store cannot do what was asked."""


class StoreCorrupted(StoreError):
    """Stored bytes are not what was written. The message names what and where."""


class BlobCorrupted(StoreCorrupted):
    """A blob's bytes are not those of its name. Once its file is deleted, peers can serve it again."""


class BlobRowCorrupted(BlobCorrupted):
    """A blob's bytes are not those of its name, and the blob is a row: there is no file to delete. `expected` is its
    digest."""


class StoreLocked(StoreError):
    """Another process holds this data directory."""


class StoreMismatch(StoreError):
    """The data directory belongs to another genesis or another schema version."""


class StoreFull(StoreError):
    """The disk has no room left. Nothing of the refused write remains."""


class StoreForbidden(StoreError):
    """This process lacks permission to use the data directory, or a file in it, as it must."""


class BlobMissing(StoreError):
    """No blob of that digest is held here."""


class SlotTaken(StoreError):
    """Other bytes were signed for this slot before; `stored` is the row that holds them."""

    def __init__(self, message: str, stored: bytes) -> None:
        super().__init__(message)
        self.stored = stored
