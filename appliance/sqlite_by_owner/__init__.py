"""A Django database backend for SQLite, for a root process: root opens no SQLite file that another user can write.

SQLite trusts the files beside a database. A journal names files that SQLite deletes, and a shortened -shm file ends
with SIGBUS each process that has mapped it. Where another user can write the folder of the database, and the process
is root, each connection is a helper process (helper.py), which has the rights of the folder's owner, sees nothing but
that folder, and runs SQLite there. The connection (connection.py) sends statements and receives plain values (wire.py).
In all other cases Django's own backend opens the database (base.py).
"""
