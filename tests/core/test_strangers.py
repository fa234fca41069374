"""What is known of instances that are not ours: for an hour, and of the newest only."""

from planaria.core.strangers import MOST, STRANGER_SECONDS, Strangers

NOW = 1_793_610_845.0


def test_a_stranger_is_known_for_an_hour() -> None:
    strangers = Strangers()
    assert not strangers.known("i-1", NOW)
    strangers.note("i-1", NOW)
    assert strangers.known("i-1", NOW + STRANGER_SECONDS - 1)
    assert not strangers.known("i-1", NOW + STRANGER_SECONDS)


def test_too_many_push_out_the_oldest() -> None:
    strangers = Strangers()
    for number in range(MOST):
        strangers.note(f"i-{number}", NOW)
    strangers.note("i-0", NOW + 1)
    strangers.note("i-new", NOW + 2)
    assert strangers.known("i-new", NOW + 3) and strangers.known("i-0", NOW + 3)
    assert not strangers.known("i-1", NOW + 3)
    assert strangers.known("i-2", NOW + 3)
