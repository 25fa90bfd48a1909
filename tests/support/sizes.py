"""Sizes and how people read them: the one table, for the server's text and for the scripts'."""

CASES = (
    (0, "0 bytes"),
    (1, "1 bytes"),
    (1023, "1023 bytes"),
    (1024, "1 KiB"),
    (1100, "1.07 KiB"),
    (3 * 2**19, "1.5 MiB"),
    (9 * 2**17, "1.13 MiB"),  # 1.125: halves go up
    (1127 * 2**10, "1.1 MiB"),
    (717 * 2**20, "717 MiB"),
    (2**30 - 1, "1024 MiB"),
    (2**30, "1 GiB"),
    (2**31, "2 GiB"),
    (5 * 2**30 + 5 * 2**20, "5 GiB"),  # 5.0049
    (143771 * 2**20, "140.4 GiB"),
    (80 * 2**30, "80 GiB"),
    (2**40, "1 TiB"),
    (5 * 2**50, "5120 TiB"),
)
