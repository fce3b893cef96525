"""Two rehearsals on one machine get addresses and ports of their own."""

import socket

from ops.slot import own_slot


def test_two_at_once_share_nothing():
    with own_slot() as first, own_slot() as second:
        assert first.number != second.number
        assert first.address(1) != second.address(1)
        ports = {first.gcs_port, first.dashboard_port, first.client_port}
        assert not ports & {second.gcs_port, second.dashboard_port, second.client_port}


def test_an_occupied_port_is_stepped_around():
    with own_slot() as slot:
        taken = slot
    with socket.socket() as other:
        # a rehearsal that has just ended leaves its connections in TIME_WAIT, which is not "occupied"
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", taken.dashboard_port))
        other.listen()
        with own_slot() as slot:
            assert slot.number != taken.number
