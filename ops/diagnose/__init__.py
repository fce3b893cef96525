"""`eagleray diagnose`: from logs, events and states to a cause and its fix.

    sources.py   files, folders, archives, standard input → documents of numbered lines
    lines.py     who said a line, and when
    objects.py   Kubernetes objects, events and stack events out of any of the tools' formats
    rules/       evidence → findings; each rule is a pure function
    judge.py     findings → first cause, its consequences, the verdict
"""
