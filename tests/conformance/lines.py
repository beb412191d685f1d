"""Which lines (numbered statements about the tf.data service) these tests check, and why they do not check the others.

A line states what the tf.data service's own tests check. `SECTIONS` are the parts that dsnb has. Each of their lines
either has a test, named `test_line_` and its three-digit number, or is in `NOT_HERE`. `DIFFERS` says how dsnb's
behaviour differs where a line is tested in another form.
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
    "1o": range(243, 252),
    "1p": range(252, 253),
    "1r": range(304, 315),
    "1t": range(326, 338),
}

NOT_HERE = {
    14: "dsnb has no traced functions to iterate in; line 11 reads the same 30 elements",
    20: "policies for state outside the graph: dsnb has no graph; objects that cannot be sent are refused by name",
    21: "as line 20; tests/service/test_bad_input.py has a function that cannot be pickled",
    48: "dsnb has no traced functions to register in",
    197: "dsnb has no graph mode; line 196 fetches the element spec in every case",
    198: "dsnb has no graph mode; an unknown element spec arrives with the first frame",
    206: "dsnb has no resources on other devices; objects that cannot be pickled are refused by name",
    207: "pinned buffers: elements are NumPy arrays in the client's memory; moving them to a device is up to the user",
    208: "hooks on the client's buffer: status() has each client's elements and waiting times",
    313: "a profiler on the worker's port: status() and the dashboard have the times of each operation",
    331: "workers of dsnb do not save datasets; Dataset.save writes from the process that calls it",
}

DIFFERS = {
    2: "nested structures and all kinds of leaves instead of sparse tensors",
    3: "rows of different lengths, one by one, instead of batches of ragged tensors",
    4: "a captured dict instead of a lookup table",
    5: "a captured object instead of a mutable hash table",
    22: "Python cannot interrupt a function: the client, the job and all further elements end at once, and a result "
    "that the function returns later is dropped",
    38: "the second client is warned that the epoch was read to its end, and is therefore empty for it",
    42: "the tf.data service's test names datasets; here, as in lines 43 to 46, an equal pipeline is the same dataset",
    46: "another pipeline under the name of a job is refused while the old one is read; ids keep their element "
    "structure",
    52: "an id is any str, including NumPy's, instead of a string tensor",
    57: "in addition, messages name a job by its id and its name, as in 'dataset_id/shared'",
    58: "without an id, an equal pipeline is found by its fingerprint, and has the id that it already has",
    59: "another pipeline of the same structure under the id gives a warning that names the first difference; the "
    "tf.data service gives none",
    62: "DYNAMIC jobs are collected like all others unless gc_dynamic_sharding_jobs=False; then named jobs are kept, "
    "and an anonymous job, which no other client can join, ends with its client",
    64: "the client is warned and continues where it was; with default timeouts, a thread of the client keeps it alive",
    66: "a client that never sent a heartbeat has the same timeout as any other, instead of being kept forever",
    86: "the mark is an operation of the pipeline, which choose_from_datasets puts around its selector",
    88: "a dataset cached by Dataset.cache takes the role of a snapshot; it has splits if no operation before it mixes "
    "data",
    93: "the tf.data service refuses; here restarted consumers continue at the current round, all at the same one",
    95: "the tf.data service raises an error; here the end is an end, after the last whole round",
    96: "the tf.data service refuses; here data may end (95)",
    97: "data may end (95); that data without an end have none is kept",
    100: "readers wait for workers that die silently until these count as lost; the test makes this happen soon",
    101: "an incomplete round at the end is not delivered, and the end is no error (95)",
    115: "finite data can be shared: each trainer gets all of it, and its next epoch is the job's next epoch",
    116: "taking from one dataset object again continues where the trainer is, like another client with its id (109)",
    120: "a DataLossWarning announces the restart, and elements that were buffered here may come before the 0",
    128: "a client of a worker that was stopped gets UNAVAILABLE, because it continues with other workers",
    133: "as line 115: the epoch of an empty dataset is empty for each trainer",
    136: "a stopped worker answers UNAVAILABLE: its clients continue with other workers (128)",
    137: "as lines 115 and 116; a cache without a job name, or with consumers, is refused",
    140: "as in line 136, a stopped worker answers UNAVAILABLE",
    142: "UNAVAILABLE instead of ABORTED, which is never used for this",
    143: "a task is stopped once, so clients get the first reason, not the latest",
    152: "the tf.data service's text says tf.data workers; the job that was created for the client is dropped again",
    157: "the tf.data service refuses; here an epoch without clients continues for the next client, until it is "
    "collected",
    160: "the tf.data service's text says tf.data workers, as in line 152",
    163: "workers are identified by their uid, which a successor at the same address does not share",
    164: "as line 128: the answer says that the worker is stopping",
    165: "a client has many workers, so the error says that reading was stopped; a closed iterator is at its end",
    166: "the client reaches its end because everything that its workers had was read; with the tf.data service it "
    "never does",
    175: "the client knows the token, here from DSNB_TOKEN, as does the server that starts later",
    177: "the read ends, and the loss is announced; the tf.data service cannot tell a lost worker from a slow one",
    181: "one file serves all starts, and its size does not grow with their number",
    182: "a work folder without a journal is a new service; a folder that cannot be created is FAILED_PRECONDITION",
    183: "a record is a row with a checksum; a file that is not a database is DATA_LOSS too, another program's "
    "database FAILED_PRECONDITION",
    184: "missing fields, unknown fields and fields of another type also count as damage",
    185: "an unknown kind of record is found when it is read, and the journal is refused as damaged",
    190: "a call is retried after UNAVAILABLE and CANCELLED; ABORTED means that a user's function raised",
    191: "definitions are stored by content; those that no dataset of the journal uses are removed",
    194: "the length of a range, rows or items is known for a private DYNAMIC job",
    201: "a message always states how its elements are compressed",
    202: "the transfers are built in; a client may require one",
    203: "elements of a worker in another process cannot be passed by reference: the client uses gRPC, unless it "
    "requires the local transfer",
    204: "the client switches when a worker of its process is replaced by one elsewhere; the worker's part of the "
    "epoch begins again there",
    218: "the tf.data service's text says tf.data workers here too, as in line 152",
    225: "a hint that leaves a worker without files is not an error, because shards that the user numbers would not be "
    "one",
    232: "the class is FailedPreconditionError, a RuntimeError, raised where the worker starts",
    234: "the tf.data service refuses; without a list, the workers present when an epoch begins are numbered",
    236: "tests/dispatcher/test_static_index.py has the forms of entries; a worker that is not listed is "
    "FAILED_PRECONDITION, and a worker that is gone frees its entry, so that its successor may use another port",
    237: "tests/pipeline/test_sharding.py tests the rewriting itself; this line tests what a user sees of it",
    238: "splits are counted for one repetition; repeat requests the next one, and counters and selectors have none",
    239: "an unknown mode is INVALID_ARGUMENT, wherever it is given",
    305: "a target names the address that the server listens on, 127.0.0.1",
    312: "status() counts the workers, and asks all of them",
    314: "the configuration is refused, before there is a server",
    329: "the number of consumers and the dataset are compared as well",
    330: "there is no call that returns it: a client gets it when it joins a job, and acts on it",
    336: "finished tasks are known from the state of their job, and dropped with its epoch",
    337: "no version number is compared: a call that the other side does not know raises an error with remedies for "
    "both sides",
}
