"""`eagleray diagnose`: from logs, events and states to a cause and its fix.

    sources.py   files, folders, archives, standard input → documents of numbered lines
    lines.py     who said a line, and when
    tables.py, objects.py   events, pods, nodes and stack events out of the tools' formats
    rules/       evidence → findings; each rule is a pure function
    judge.py     findings → first cause, its consequences, the verdict
    health.py    signs that all is well, and alarms that no rule accounts for
    collect.py   what a cluster tells right now; a bundle of it (redaction.py)
"""
