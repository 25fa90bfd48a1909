#pragma once

/* Serves the UNIX socket at `path` on the standard streams; the exit code. */
int connect_to(const char *path);
