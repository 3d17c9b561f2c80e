"""The checks of who this node is in its federation, and whether it knows where the others are.

They go by the members that there are now: as the running node says, or the chain in its data directory; by genesis
where neither is there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from chain.block import Id
from chain.genesis import Genesis
from chain.signing import SigningKey, decode_id, encode_id
from chain.state import State
from chain.store.rows import DATABASE
from node.cli.doctor.findings import Finding, fail, ok, warn
from node.config.genesis_members import read_head_state
from node.config.node_config import NodeConfig
from node.errors import NodeError
from node.p2p.address_book import AddressBook

if TYPE_CHECKING:
    from node.pb import admin_pb2 as pb


@dataclass(frozen=True, slots=True)
class Roster:
    """The names of the members by key, in key order; the keys of observers; and the number of members that decide."""

    members: Mapping[Id, str]
    observers: Collection[Id]
    quorum: int

    @classmethod
    def from_state(cls, state: State) -> Self:
        members = {member.key: member.name for member in state.members}
        return cls(members, {observer.key for observer in state.observers}, state.q)

    @classmethod
    def from_reply(cls, reply: pb.ListMembersReply) -> Self:
        members = {decode_id(member.id): member.name for member in reply.members}
        observers = {decode_id(observer.id) for observer in reply.observers}
        return cls(dict(sorted(members.items())), observers, reply.quorum)


def read_roster(config: NodeConfig, genesis: Genesis, *, is_running: bool) -> Roster:
    """Reads the roster in force, as far as this node knows it."""
    if is_running and config.admin.socket is not None:
        from node.admin.client import AdminClient

        try:
            with AdminClient(config.admin.socket) as client:
                return Roster.from_reply(client.list_members())
        except NodeError:  # it is starting or ending: another check reports that
            pass
    return Roster.from_state(read_head_state(config, genesis) or genesis.state)


def read_addresses(config: NodeConfig, genesis: Genesis) -> dict[Id, str]:
    """Reads the address at which the node would dial each member: from genesis, the configuration, its operator or the
    members themselves."""
    configured = config.network.get_addresses(genesis)
    try:
        return AddressBook.load(config.node.data_dir, configured).get_all()
    except NodeError:
        return configured


def check_membership(
    config: NodeConfig, path: Path, genesis: Genesis, roster: Roster, key: SigningKey | None
) -> Iterator[Finding]:
    if key is not None and (problem := _judge_key(config, path, genesis, roster, key.id)) is not None:
        yield problem
        return
    founders = {*genesis.state.member_ids, *(observer.key for observer in genesis.observers)}
    for peer in config.network.get_peer_addresses():
        if peer not in founders and peer not in roster.members and peer not in roster.observers:
            judge = warn if (config.node.data_dir / DATABASE).is_file() else fail  # that chain may be behind
            yield judge(
                "members",
                f"{path}: network.peers names {encode_id(peer)}, which is neither a member nor an observer",
                f"take the entry out; besides its observers {genesis.chain_name} has "
                + ", ".join(roster.members.values()),
            )
    addresses = read_addresses(config, genesis)
    me = None if key is None else key.id
    missing = [name for member, name in roster.members.items() if member not in addresses and member != me]
    if missing:
        yield warn(
            "members",
            f"no address is known of {', '.join(missing)}",
            "name it under network.peers, unless those dial this node",
        )
    if me is not None and me in roster.members:
        place = [*roster.members].index(me) + 1
        yield ok("members", f"{config.node.name} is {roster.members[me]}, member {place} of {len(roster.members)}")
    elif me is not None:
        yield ok("members", f"{config.node.name} observes the {len(roster.members)} members of {genesis.chain_name}")


def _judge_key(config: NodeConfig, path: Path, genesis: Genesis, roster: Roster, me: Id) -> Finding | None:
    """Returns the finding about a key that does not have the role that the configuration names."""
    if me in roster.members:
        if not config.node.observer:
            return None
        return fail(
            "members",
            f"{path}: node.observer is true, and this node's key {encode_id(me)} is a member's",
            "take node.observer out, or give the observer a key of its own",
        )
    if config.node.observer:
        return None
    if config.join_file is not None:
        return ok("members", f"{config.node.name} is no member yet, as far as this node knows the chain")
    if genesis.state.index_of(me) is not None:
        return fail(
            "members",
            f"{path}: this node's key {encode_id(me)} is a member's no more",
            "use the key that its seat has now, or join anew: fednode init --join",
        )
    return fail(
        "members",
        f"{config.federation_file}: expected this node's key {encode_id(me)} among its members",
        "use the key that genesis names, or ask for a genesis that names this one",
    )
