"""`gpushare top`: one screen with the cards, who holds what, and who waits.

model.py is what is seen and what keys do with it, without a terminal; drawing.py makes lines of it, columns.py decides
what fits; terminal.py has the keyboard and the screen; live.py brings them together; watching.py is the command.

Plain ANSI and the standard library: a dozen sequences that every terminal of today knows. curses would want a terminfo
entry and a locale on the host where it runs, measures names by the C library's tables, and hides what goes out, so that
nobody could say that a line is only written when it has changed.
"""
