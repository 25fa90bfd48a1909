"""`gpushare`: the command line. It talks REST (docs/rest.md) and knows nothing else of the appliance.

main.py starts it and turns every error into one line; login.py finds the address and the token; client.py speaks
HTTP; launch.py, attach.py, actions.py, views.py, reports.py and top/ are the commands; rows.py and text.py put
figures into words.

What only some commands need (httpx) is imported where it is used: `gpushare --help` and every key press of
shell completion wait for the imports.
"""

from appliance.cli.main import main

__all__ = ["main"]
