"""The book of peers follows the state in force, and goes on to know what it knew of whoever stays."""

from __future__ import annotations

from chain.changes.members import AddMember, AddObserver, RemoveMember, RemoveObserver
from node.clock import SystemClock
from node.p2p.admission import Role
from node.p2p.peers import Peers
from node.p2p.refusals import Reason
from support.data.chains import make_genesis, make_keys
from support.data.changes import LivingChain

KEYS = make_keys(4)
NEW = make_keys(1, "newcomer")[0]
EASY = {"difficulty": 1, "min": 1, "max": 1, "target_ms": 100}


def test_an_observer_that_joins_goes_on_to_be_connected_and_alive() -> None:
    chain = LivingChain(make_genesis(KEYS, pow=EASY), [*KEYS, NEW])
    peers = Peers(chain.state, KEYS[0].id, SystemClock())
    chain.add_change(AddObserver(NEW.id, "onlooker"))
    peers.on_state(chain.state)
    peers.on_up(NEW.id)
    peers.on_seen(NEW.id)
    peers.refuse(NEW.id, Reason.RULE)
    chain.add_change(RemoveObserver(NEW.id))
    chain.add_change(AddMember(NEW.id, "newcomer"))
    peers.on_state(chain.state)
    peer = peers.get(NEW.id)
    assert peer is not None
    assert (peer.name, peer.is_member, peer.connected, peer.num_rejected) == ("newcomer", True, True, 1)
    assert peers.is_alive(NEW.id)


def test_who_has_left_is_no_peer_and_still_has_a_name() -> None:
    chain = LivingChain(make_genesis(KEYS, pow=EASY), KEYS)
    peers = Peers(chain.state, KEYS[0].id, SystemClock())
    member = chain.state.get_member(KEYS[3].id)
    assert member is not None
    chain.add_change(RemoveMember(member.seat))
    peers.on_state(chain.state)
    assert peers.get(KEYS[3].id) is None
    assert peers.get_name(KEYS[3].id) == member.name
    peers.on_up(KEYS[3].id)
    peers.refuse(KEYS[3].id, Reason.RULE)
    assert not peers.is_connected(KEYS[3].id)


def test_guests_are_in_the_book_as_long_as_they_are_let_in() -> None:
    chain = LivingChain(make_genesis(KEYS, pow=EASY), [*KEYS, NEW])
    peers = Peers(chain.state, KEYS[0].id, SystemClock())
    peers.on_guests({NEW.id: "newcomer"})
    guest = peers.get(NEW.id)
    assert guest is not None
    assert (guest.name, guest.role) == ("newcomer", Role.GUEST)
    peers.on_seen(NEW.id)
    assert peers.is_alive(NEW.id)
    assert peers.count_alive_members() == 1
    chain.add_change(AddObserver(NEW.id, "onlooker"))
    peers.on_state(chain.state)
    assert (guest.name, guest.role) == ("onlooker", Role.OBSERVER | Role.GUEST)
    chain.add_change(AddMember(NEW.id, "fifth"))
    peers.on_state(chain.state)
    peers.on_guests({})
    assert peers.get(NEW.id) is guest
    assert (guest.name, guest.is_member) == ("fifth", True)
    peers.on_guests({KEYS[0].id: "me"})
    assert peers.get(KEYS[0].id) is None
