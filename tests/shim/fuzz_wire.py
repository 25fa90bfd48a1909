"""Feeds the scheduler's frame parser with what nobody should send: `python -m tests.shim.fuzz_wire [INPUTS]`.

Each input is a stream of frames, mutated and cut into pieces at random. Whatever comes, the parser yields frames of
types that a process may send, or raises WireError and nothing else; and how the stream was cut makes no difference.
"""

import random
import sys
import time

from scheduler.sessions.wire import FRAME_SIZE, FROM_PROCESS, Frame, Reader, Type, WireError, pack
from shim.binding import WIRE_VERSION

SEEDS = [
    pack(frame)
    for frame in (
        Frame(Type.HELLO, code=WIRE_VERSION),
        Frame(Type.NEED, 1, 7, 0, 1 << 30),
        Frame(Type.RELEASED, 3),
        Frame(Type.PHYSICAL, 2, bytes=2**64 - 1),
        Frame(Type.GRANTED, 0, 1, bytes=1),
    )
]


def mutate(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choices(SEEDS, k=chance.randrange(1, 4))))
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif kind == 2 and len(data) > 1:
            del data[at]
        else:
            data.insert(at, chance.randrange(256))
    return bytes(data)


def read(pieces: list[bytes]) -> tuple[list[Frame], bool]:
    """(frames, whether it ended in a WireError)."""
    reader, frames = Reader(), []
    try:
        for piece in pieces:
            frames.extend(reader.feed(piece))
    except WireError:
        return frames, True
    return frames, False


def one(chance: random.Random) -> None:
    data = mutate(chance)
    cut = chance.randrange(len(data) + 1)
    # A list would be filled only up to the error within one piece, so frame by frame is the reference.
    whole = read([data[at : at + FRAME_SIZE] for at in range(0, len(data), FRAME_SIZE)])
    pieces = read([data[:cut], data[cut:]])
    for frames, _ in (whole, pieces):
        for frame in frames:
            if frame.type not in FROM_PROCESS:
                raise AssertionError(f"{data.hex()}: yielded {frame}")
    if whole[1] != pieces[1] or whole[0][: len(pieces[0])] != pieces[0]:
        raise AssertionError(f"{data.hex()} cut at {cut}: {whole} and {pieces}")


def main() -> None:
    inputs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000
    chance = random.Random(20)
    begin = time.monotonic()
    for number in range(inputs):
        one(chance)
        if number and number % 1_000_000 == 0:
            print(f"{number} inputs, {number / (time.monotonic() - begin):.0f} a second", flush=True)
    print(f"the scheduler's parser: {inputs} inputs, no failure")


if __name__ == "__main__":
    main()
