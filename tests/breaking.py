"""Every value of an object, and the object with one of them broken or left out."""

import copy
import re


def leaves(value, path="", is_leaf=lambda value: False):
    """Path (`a.b[0].c`, dots within a key as |) and value of each leaf. `is_leaf`: which mappings are one."""
    if isinstance(value, dict) and not is_leaf(value):
        for key, below in value.items():
            step = key.replace(".", "|")
            yield from leaves(below, f"{path}.{step}" if path else step, is_leaf)
    elif isinstance(value, list):
        for i, below in enumerate(value):
            yield from leaves(below, f"{path}[{i}]", is_leaf)
    else:
        yield path, value


def broken(value):
    """Another value of the same type; of a mapping, a text."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else f"{value}x"


def put(manifest, path, value):
    """A copy with another value at `a.b[0].c`; without the field where the value is None."""
    changed = copy.deepcopy(manifest)
    keys = [int(index) if index else name.replace("|", ".")
            for index, name in re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)]
    where = changed
    for key in keys[:-1]:
        where = where.setdefault(key, {}) if isinstance(where, dict) else where[key]
    if value is None:
        del where[keys[-1]]
    elif isinstance(where, list) and keys[-1] == len(where):
        where.append(value)
    else:
        where[keys[-1]] = value
    return changed
