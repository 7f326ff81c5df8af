"""`millstream run`: starts the tiers as processes, keeps them up, ends them in order.

part.py        what one process is: its command, what it needs, when it is ready
launch.py      the first lines that a child runs: it dies with its parent
child.py       one process and its group
supervisor.py  all of them: start, restart with backoff, give up, end in order
logfile.py     each child's output, bounded
system.py      Millstream's own parts: kafka, collect, analyze, serve, and what `--with` adds
ports.py       who holds a port
run.py         one whole run, from the first start to the last process gone
figures.py     what the running system tells about itself, once a second
tables.py      those figures as tables and as one line
steps.py       what happens, as plain lines
screen.py      the same on a terminal, then one live screen
machine.py     whether this machine has what a run needs
"""
