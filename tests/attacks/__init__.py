"""Attacks, one file an attacker: a program in its container, a member with a token, a stranger at the port, an image,
whoever writes the database. Each asks as well what became of a bystander."""
