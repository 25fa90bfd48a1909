"""All records of the appliance. Hosts and GPUs in hosts.py, containers and commands in records.py, words that their
fields can have in choices.py, what happened to them in history.py, the states of a container in states.py, who may do
what in people.py, notifications in notifying.py, the hash chain in chain.py, Docker's volumes in volumes.py, fair
share in shares.py, notices, maintenance and reservations in booked.py, launches that begin later and presets in
planned.py."""

from web.models.booked import Announcement, CalendarKey, Reservation, ReservedGpu
from web.models.chain import AuditEntry, Chain, Seal, Verification
from web.models.choices import ExpectedBy, GaveWay, Shortage, Swap
from web.models.history import AllocationEvent, UsageSample
from web.models.hosts import Compute, Gpu, Invitation, Node
from web.models.notifying import Delivery, Episode, Happening, Notice, Receiver, Rule, Severity, Silence, Watch, Wish
from web.models.people import Allowance, AppGuest, AppSession, Membership, Scope, SignInLink, SshKey, Token
from web.models.planned import Ended, Planned, Preset
from web.models.records import Claim, Command, Container, ContainerQuerySet, large
from web.models.shares import GroupShares, PersonShares, Usage, UsageHour
from web.models.states import State
from web.models.volumes import Volume
