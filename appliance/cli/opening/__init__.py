"""`gpushare open`: an application in a container, in the browser of this machine.

command.py is the command, listening.py listens here; tunnel.py is one connection into the container; appliance/heads.py
passes HTTP on.
"""

from appliance.cli.opening.command import open_

__all__ = ["open_"]
