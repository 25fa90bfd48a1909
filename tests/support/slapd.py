"""A real LDAP server from the distribution's packages, with a few people in it."""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import PATIENCE
from tests.support.ports import free_port

SLAPD = shutil.which("slapd", path="/usr/sbin:/usr/local/sbin:/usr/bin")

_CONFIGURATION = """
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {folder}/pid
database mdb
suffix "dc=lab"
directory {folder}/data
rootdn "cn=root,dc=lab"
rootpw secret
access to attrs=userPassword by anonymous auth by * none
access to * by users read
"""

_PEOPLE = """
dn: dc=lab
objectClass: dcObject
objectClass: organization
dc: lab
o: lab

dn: cn=reader,dc=lab
objectClass: person
cn: reader
sn: reader
userPassword: reads

dn: uid=grace,dc=lab
objectClass: inetOrgPerson
uid: grace
cn: Grace Hopper
givenName: Grace
sn: Hopper
mail: grace@lab
userPassword: compiles

dn: uid=admin,dc=lab
objectClass: inetOrgPerson
uid: admin
cn: admin
sn: admin
userPassword: not yours

dn: cn=Linus Torvalds,dc=lab
objectClass: inetOrgPerson
uid: torvalds
uid: lin
cn: Linus Torvalds
sn: Torvalds
userPassword: penguins

dn: uid=../root,dc=lab
objectClass: inetOrgPerson
uid: ../root
cn: root
sn: root
userPassword: climbs

dn: cn=gpu-operators,dc=lab
objectClass: groupOfNames
cn: gpu-operators
member: uid=grace,dc=lab

dn: cn=admin,dc=lab
objectClass: groupOfNames
cn: admin
member: uid=grace,dc=lab
"""


@contextmanager
def running_slapd(folder: Path) -> Iterator[str]:
    """Its URL."""
    assert SLAPD is not None
    (folder / "data").mkdir()
    configuration, people = folder / "slapd.conf", folder / "people.ldif"
    configuration.write_text(_CONFIGURATION.format(folder=folder))
    people.write_text(_PEOPLE.lstrip())
    subprocess.run([SLAPD, "-T", "add", "-f", str(configuration), "-l", str(people)], check=True, capture_output=True)
    port = free_port()
    url = f"ldap://127.0.0.1:{port}"
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [SLAPD, "-f", str(configuration), "-h", url, "-d", "0"], stdout=output, stderr=output
        )
    try:
        _wait_for(port, process)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert process.poll() is None, "slapd ended by itself"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, "slapd does not listen"
        time.sleep(0.02)
