"""The measurement of large allocations (tests/gpu/shim/sizes.py), on the simulated card: what it tells is there."""

from tests.gpu.shim import sizes, training
from tests.gpu.shim.card import GIB
from tests.support.card import MIB


def test_each_kind_of_process_is_measured_and_the_drivers_part_separately(card, grants_of, capsys):
    grants = grants_of(quota=1024 * MIB, extra=1024 * MIB)
    _, library = sizes.programs()
    envs = {kind: card.env(**env) for kind, env in sizes.kinds(grants.env(), library).items()}
    found = sizes.measure(envs, 0)
    assert {kind: len(processes) for kind, processes in found.items()} == {"nothing": 2, "a library": 2, "the shim": 2}
    for kind, processes in found.items():
        for process in processes:
            for mib in sizes.SIZES:
                pairs = sizes.pairs(process, mib)
                assert len(pairs) == sizes.ROUNDS
                assert all(seen.seen and not own.seen for own, seen in pairs)
                assert all((seen.inside > 0) == (kind == "the shim") for _, seen in pairs)
                assert all(seen.inside <= seen.taken for _, seen in pairs)
    sizes.tell(found)
    output = capsys.readouterr().out
    assert output.count("the shim's way there and back") == len(sizes.SIZES)


def test_processes_of_two_speeds_are_parted_between_them():
    assert sizes.halves([37.0, 37.5, 36.9, 49.0, 48.8, 49.2]) == (37.5 + 48.8) / 2


def test_as_many_trainings_stand_by_as_the_card_has_room_for():
    assert training.fitting(5, each=10 * GIB, free=130 * GIB) == 5
    assert training.fitting(5, each=10 * GIB, free=68 * GIB) == 3
    assert training.fitting(40, each=1 * GIB, free=77 * GIB) == 36
    assert training.fitting(5, each=60 * GIB, free=20 * GIB) == 1
