"""What we are called in a cluster, and what our words are there."""

import re

DRIVER = "gpushare.dev"  # also the vendor of our CDI devices, and the group of our parameters
PARAMETERS = f"{DRIVER}/v1"
KIND = "Quota"
CAPACITY = "memory"

# NVML's numbers (nvml.h, nvmlDeviceArchitecture_t).
ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper",
    10: "Blackwell",
}  # fmt: skip


def device_name(uuid: str) -> str:
    """A card's name in the cluster: its UUID as a DNS label, which no reboot changes."""
    return re.sub(r"[^a-z0-9-]+", "-", uuid.lower()).strip("-")[:63].strip("-")
