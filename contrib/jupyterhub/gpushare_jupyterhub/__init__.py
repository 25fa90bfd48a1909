"""JupyterHub starts notebooks in containers of a gpushare appliance, each under a quota of GPU memory.

c.JupyterHub.spawner_class = "gpushare_jupyterhub.spawner.GpushareSpawner"
"""
