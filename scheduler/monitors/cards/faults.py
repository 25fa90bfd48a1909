"""The faults for which nothing new is placed on a card, and what to do about each: a table, and who looks it up.

The XIDs and what to do: NVIDIA's XID catalog (https://docs.nvidia.com/deploy/xid-errors/) and its health checks
(https://docs.nvidia.com/health-validation/reference/checks/xid). Row remapping and its failure:
https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/. The temperature is the card's own threshold of a shutdown.
How many uncorrected errors are too many NVIDIA does not say of this counter: MOST_ECC is this appliance's own limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.gpus import Card, Reading

MOST_ECC = 10  # uncorrected errors since the driver was loaded


@dataclass(frozen=True, slots=True)
class Fault:
    """`means` and `do`: sentences. `answers`: the card does, so what is on it can be moved to another one."""

    means: str
    do: str
    answers: bool = True

    def __str__(self) -> str:
        return f"{self.means} {self.do}"


RESET = "When it is empty, reset it (`nvidia-smi -r`)."
REPLACE = "Have the card replaced."

XIDS: Mapping[int, Fault] = {
    48: Fault("XID 48: an uncorrectable memory error (double bit).", f"{RESET} If it returns, run NVIDIA's diagnosis."),
    63: Fault("XID 63: a row of its memory is to be remapped.", f"Results so far are right. {RESET}"),
    64: Fault("XID 64: a row of its memory could not be remapped.", f"{RESET} If it returns: {REPLACE.lower()}"),
    79: Fault(
        "XID 79: the card has fallen off the bus.",
        "Restart the host. If it returns, check power and slot.",
        answers=False,
    ),
    94: Fault("XID 94: an uncorrectable memory error hit one program.", f"Start that program again. {RESET}"),
    95: Fault("XID 95: an uncorrectable memory error may have hit every program on it.", RESET),
    119: Fault(
        "XID 119: the card's own processor (GSP) does not answer.",
        f"{RESET} If that fails, restart the host.",
        answers=False,
    ),
    120: Fault(
        "XID 120: the card's own processor (GSP) failed.", f"{RESET} If that fails, restart the host.", answers=False
    ),
}
LOST = Fault("The card does not answer: it has fallen off the bus.", XIDS[79].do, answers=False)
NOT_REMAPPED = Fault("Rows of its memory could not be remapped.", REPLACE)
TOO_HOT = Fault("It is as hot as the temperature at which it switches off.", "Check its fans and the room's cooling.")
MANY_ERRORS = Fault("It had more than {most} uncorrected memory errors.", f"{RESET} If they return: {REPLACE.lower()}")

SILENT = frozenset(str(each) for each in (*XIDS.values(), LOST) if not each.answers)


def found(card: Card, reading: Reading | None) -> str:
    """The fault that this reading shows and that lasts, with what to do about it; empty: none. None: it is lost."""
    if reading is None:
        return str(LOST)
    if reading.remap_failed:
        return str(NOT_REMAPPED)
    if card.shutdown_at is not None and reading.temperature is not None and reading.temperature >= card.shutdown_at:
        return str(TOO_HOT)
    if (reading.ecc_errors or 0) > MOST_ECC:
        return str(MANY_ERRORS).format(most=MOST_ECC)
    if reading.remap_pending:  # lasts until the reset, also where nobody listened for its XID
        return str(XIDS[63])
    return ""
