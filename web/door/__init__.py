"""ssh into containers: `ssh NAME@host -p PORT`, for images without an sshd (docs/ssh.md).

A process of its own without rights holds these connections. A person is whose public key it is; the container is the
user name. Programs are started by the scheduler as `exec` does, with the same rights, and looked at again as a console
is; ports are reached as `gpushare open` reaches them, and lead into the container alone. No file of this host is
served: sftp is a program of ours that runs inside.
"""
