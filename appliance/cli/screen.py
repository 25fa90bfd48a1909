"""What other people's programs print, made harmless for a terminal.

A terminal takes more orders than to show text: some sequences write its clipboard, its title or its answers to
questions, which the shell then reads. Colours and other ways to set off text (SGR) pass; every other control character
is shown as a sign that stands for it.
"""

import codecs
import re
import sys

_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
_KEPT_OR_NOT = re.compile(rf"{_COLOUR}|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # tab, new line and return pass
_UNFINISHED = re.compile(r"\x1b(\[[0-9;:]{0,64})?\Z")
_PLAIN_AGAIN = b"\x1b[0m"


class Screen:
    """One stream of output on its way to our standard output. Where that is no terminal, it passes as it is."""

    def __init__(self, *, raw: bool = False) -> None:
        self._raw = raw or not sys.stdout.isatty()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""  # what may be the beginning of a colour
        self._coloured = False

    def shown(self, data: bytes) -> bytes:
        return data if self._raw else self._harmless(self._decoder.decode(data), final=False)

    def end(self) -> bytes:
        """What is still to be written. Our own text goes on in our own colours."""
        if self._raw:
            return b""
        rest = self._harmless(self._decoder.decode(b"", final=True), final=True)
        return rest + (_PLAIN_AGAIN if self._coloured else b"")

    def _harmless(self, text: str, *, final: bool) -> bytes:
        text, self._held = self._held + text, ""
        if not final and (found := _UNFINISHED.search(text)):
            text, self._held = text[: found.start()], found[0]
        return _KEPT_OR_NOT.sub(self._sign, text).encode()

    def _sign(self, found: re.Match[str]) -> str:
        if len(found[0]) > 1:
            self._coloured = True
            return found[0]
        code = ord(found[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else "�"
