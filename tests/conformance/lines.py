"""The lines of the original's behaviour that these tests answer to, and those that they do not, with the reason.

A line is a numbered statement about what the tf.data service's own tests check. `SECTIONS` are the parts of it that are
built; each line of them has a test whose name begins with `test_line_` and its number of three digits, or stands in
`NOT_HERE`. `DIFFERS` says where a line is tested for what it promises, in another way than the original does it.
"""

from __future__ import annotations

SECTIONS = {
    "1a": range(1, 23),
    "1b": range(23, 36),
    "1c": range(36, 47),
    "1f": range(68, 92),
    "1h": range(102, 139),
    "1i": range(139, 144),
}

_SELECTING = "choosing and sampling among datasets is not built yet; their splits come with them"

NOT_HERE = {
    14: "iterating inside a traced function: there are no traced functions; line 11 reads the same 30 elements",
    20: "policies for state that a graph cannot carry: there is no graph; what cannot travel is refused by name",
    21: "as line 20; tests/service/test_bad_input.py has a function that cannot be pickled",
    74: "group_by_window is not built yet; inner datasets of flat_map and interleave (71 to 73) are read whole already",
    84: _SELECTING,
    85: _SELECTING,
    86: "marking a source to be replicated on each worker is not built yet; it comes with the sharding options",
    88: "snapshots as sources are not built yet",
    121: "a dispatcher that is started again needs the journal on disk, which is not built yet",
}

DIFFERS = {
    1: "fault-tolerant mode and work folders come with the journal, so there is one configuration instead of three",
    2: "elements with nested structures and all kinds of leaves in place of sparse tensors",
    3: "rows of different lengths, one by one, in place of batches of ragged tensors",
    4: "a captured dict in place of a lookup table",
    5: "a captured object in place of a mutable hash table",
    19: "map(deterministic=False) in place of the dataset option, which is not built yet",
    22: "Python cannot interrupt a function: the reader, the job and all further elements go within a second, and what "
    "the function returns later is dropped",
    42: "the original gave datasets names; here, as in lines 43 to 46, the same pipeline is the same dataset",
    46: "another pipeline under a job's name is refused while the old one is read; ids are held to one structure",
    120: "the restart is announced by a DataLossWarning, and elements that were buffered here may come before the 0",
    128: "a reader that comes after the end is told UNAVAILABLE, because it goes on with other workers then",
    143: "a task is stopped once, so the first word is what readers are told, not the latest",
}
