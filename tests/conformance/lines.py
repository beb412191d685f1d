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
    "1d": range(47, 60),
    "1e": range(60, 68),
    "1f": range(68, 92),
    "1g": range(92, 102),
    "1h": range(102, 139),
    "1i": range(139, 144),
    "1j": range(144, 166),
    "1k": range(166, 192),
    "1l": range(192, 202),
    "1m": range(202, 209),
    "1n": range(209, 243),
    "1p": range(252, 253),
    "1r": range(304, 315),
    "1t": range(326, 338),
}

NOT_HERE = {
    14: "iterating inside a traced function: there are no traced functions; line 11 reads the same 30 elements",
    20: "policies for state that a graph cannot carry: there is no graph; what cannot travel is refused by name",
    21: "as line 20; tests/service/test_bad_input.py has a function that cannot be pickled",
    48: "registering inside a traced function: there are no traced functions",
    197: "no element spec in graph mode: there are no graphs; line 196 fetches it in every case",
    198: "registered in graph mode, read eagerly: there are no graphs; an unknown spec comes with the first frame",
    206: "resources on another device: there are none; what cannot be pickled is refused by name",
    207: "pinned buffers: elements are NumPy arrays in the reader's memory, and a device is the user's step",
    208: "hooks for what goes into and out of the client's buffer: status() has each reader's elements and waits",
    313: "a profiler on the worker's port: status() and the dashboard have the times of each operation",
    330: "there are no deployment modes; target_workers says what is read",
    331: "saving datasets by a service is not built; Dataset.cache(where) keeps what was produced",
}

DIFFERS = {
    2: "elements with nested structures and all kinds of leaves in place of sparse tensors",
    3: "rows of different lengths, one by one, in place of batches of ragged tensors",
    4: "a captured dict in place of a lookup table",
    5: "a captured object in place of a mutable hash table",
    22: "Python cannot interrupt a function: the reader, the job and all further elements go at once, and what "
    "the function returns later is dropped",
    38: "the second client is warned that the pass was read to its end, and so is empty for it",
    42: "the original gave datasets names; here, as in lines 43 to 46, the same pipeline is the same dataset",
    46: "another pipeline under a job's name is refused while the old one is read; ids are held to one structure",
    52: "an id is text of any kind, NumPy's among them, in place of a string tensor",
    57: "and a job is called by its id and its name, as in 'dataset_id/shared', where a message names it",
    58: "where no id is given the same pipeline is found by its fingerprint, and has the id that it has already",
    59: "another pipeline of the same structure under the id is a warning that names the first difference; the "
    "original is silent",
    62: "DYNAMIC jobs are collected like all others unless gc_dynamic_sharding_jobs=False says otherwise; then those "
    "with a name are kept, and one without, which nobody could ask for again, goes with its reader",
    64: "it is warned and comes back to where it was; with the usual times a thread of the reader keeps it alive",
    66: "a client that was never heard of has as long as any other, and is not kept for ever",
    86: "the mark is an operation of the pipeline, which choose_from_datasets puts around its selector",
    88: "a recording that Dataset.cache keeps stands for a snapshot",
    93: "the original refuses; here consumers that are started again go on where the rounds are, all at the same one",
    97: "the data need not be known to be endless: an end that comes all the same is an error (95)",
    100: "workers that die unseen are waited for until they are counted as lost, which the test has happen soon",
    101: "what is no whole round at the end is nobody's, and the end is an error (95)",
    115: "finite data can be shared, each trainer has all of it, and its next pass is the job's next",
    116: "taking from one dataset object again goes on where the trainer is, as another client of its id does (109)",
    120: "the restart is announced by a DataLossWarning, and elements that were buffered here may come before the 0",
    128: "a reader that comes after the end is told UNAVAILABLE, because it goes on with other workers then",
    133: "as line 115: the pass of an empty dataset is empty for each trainer",
    137: "as lines 115 and 116; a cache without a name, or with consumers, is refused",
    143: "a task is stopped once, so the first word is what readers are told, not the latest",
    152: "the original says tf.data workers; the job that was made for the reader is dropped again",
    157: "the original refuses; here a pass that nobody reads goes on for who asks for it again, until it is collected",
    163: "workers are known by their uid, which a successor at the same address does not share",
    164: "the error's class is UnavailableError: a reader goes on with other workers then",
    166: "the reader's end comes, for all that its workers had was read; the original's never does",
    175: "the client knows the token, here from DSNB_TOKEN, as the server does that comes later",
    177: "the read ends, and the loss is announced; the original cannot tell a lost worker from a slow one",
    181: "there is one file for all starts, and what is in it does not grow with their number",
    182: "a work folder without a journal is a new service; one that cannot be made is FAILED_PRECONDITION",
    183: "a record is a row with a checksum; a file that is no journal at all is DATA_LOSS too",
    184: "fields that are missing, unknown or of another kind count as well as what is no message",
    185: "an unknown kind of record is found when it is read, and the journal is refused as damaged",
    190: "only a server that is away is asked again: UNAVAILABLE; ABORTED is never said, and CANCELLED is meant",
    191: "definitions are kept by what they contain; what no dataset of the journal has is removed",
    202: "the ways to hand over are built in; a reader may insist on one",
    203: "a worker of another process cannot be read in place: the reader goes to gRPC by itself, unless it insists",
    204: "the reader moves when a worker of its process is followed by one elsewhere; its pass begins again there",
    225: "a hint that leaves a worker no file is no error: the user's own numbers would not be either",
    232: "the class is FailedPreconditionError, a RuntimeError, raised where the worker starts",
    234: "the original refuses; without a list the workers that are there when a pass begins are numbered",
    236: "tests/dispatcher/test_slots.py has the forms of entries; a worker that is not listed is FAILED_PRECONDITION, "
    "and one that is gone frees its place, so that its successor may come on another port",
    237: "tests/pipeline/test_sharding.py has the rewriting itself; here what a user sees of it",
    238: "splits are counted for one repetition; a repeat asks for the next one, and counters and selectors have none",
    305: "a target names the address that is listened on, 127.0.0.1",
    312: "workers are counted by status(), which asks them all",
    314: "the configuration is refused, before there is a server",
    336: "tasks that are over are told by the state of their job, and dropped with its pass",
    337: "no version number is compared: a call that the other side does not know is told, with both sides' remedy",
}
