"""A small mail server: what SMTP says in the order in which it is said, on a real socket. It keeps what it takes."""

import email
import email.policy
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any


@dataclass
class Letter:
    sender: str
    to: list[str]
    text: bytes

    @property
    def message(self) -> EmailMessage:
        found = email.message_from_bytes(self.text, policy=email.policy.default)
        assert isinstance(found, EmailMessage)
        return found


@dataclass
class Mailbox:
    """`refuses` is answered to each letter instead of taking it, such as "451 later"."""

    port: int = 0
    refuses: str = ""
    letters: list[Letter] = field(default_factory=list)


def _handler(mailbox: Mailbox) -> type[socketserver.StreamRequestHandler]:
    class Talk(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            sender, to = "", []
            self.say("220 mailbox")
            while line := self.rfile.readline().decode().strip():
                verb, _, rest = line.partition(" ")
                match verb.upper():
                    case "MAIL":
                        sender = rest
                        self.say("250 ok")
                    case "RCPT":
                        to.append(rest.partition(":")[2].strip("<>"))
                        self.say("250 ok")
                    case "DATA":
                        self.say("354 go on")
                        text = self._text()
                        if not mailbox.refuses:
                            mailbox.letters.append(Letter(sender, to, text))
                        self.say(mailbox.refuses or "250 ok")
                        sender, to = "", []
                    case "QUIT":
                        self.say("221 bye")
                        return
                    case _:
                        self.say("250 ok")

        def _text(self) -> bytes:
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
            return b"".join(lines)

    return Talk


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


@contextmanager
def open_mailbox(**fields: Any) -> Iterator[Mailbox]:
    mailbox = Mailbox(**fields)
    with _Server(("127.0.0.1", mailbox.port), _handler(mailbox)) as server:
        mailbox.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        try:
            yield mailbox
        finally:
            server.shutdown()
