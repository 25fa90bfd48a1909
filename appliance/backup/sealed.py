"""With a passphrase: OpenPGP by `gpg`, which notices a changed byte, and which every distribution has."""

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from appliance.backup import Failed


def encrypt(source: Path, target: Path, passphrase: Path) -> None:
    """`passphrase`: a file whose first line it is. Raises Failed."""
    _gpg(
        passphrase, "--symmetric", "--cipher-algo", "AES256", "--compress-algo", "none", "-o", str(target), str(source)
    )


def decrypt(source: Path, target: Path, passphrase: Path) -> None:
    _gpg(passphrase, "--decrypt", "-o", str(target), str(source))


def is_encrypted(path: Path) -> bool:
    """An OpenPGP message begins with a byte of 0x80 or more (RFC 9580, 4.2); a tar with the name of a file."""
    with path.open("rb") as file:
        return file.read(1) >= b"\x80"


def _gpg(passphrase: Path, *words: str) -> None:
    if shutil.which("gpg") is None:
        raise Failed("gpg is not installed. The package gnupg has it.")
    if not passphrase.read_text().strip():
        raise Failed(f"{passphrase} is empty: its first line has to be the passphrase.")
    with TemporaryDirectory(prefix="gpg-", dir="/tmp") as home:  # its agent's socket wants a short path
        command = ["gpg", "--homedir", home, "--batch", "--yes", "--quiet", "--pinentry-mode", "loopback",
                   "--passphrase-file", str(passphrase), *words]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True, check=False)
    if done.returncode:
        raise Failed(f"gpg failed; is this the passphrase? {done.stderr.strip()[-300:]}")
