"""The shared memory transfer, for client and worker in two processes on one host.

Theory of operation. A worker has one *memory*: a memfd, which has no name and is freed with the last process that holds
it. It is divided into *slabs* of whole pages (`free_list`). Each slab holds the body of one frame, which is written
once for all readers (`pool`). A reader has one Unix socket to the worker for each task (`server` is the worker's end,
`client` the reader's). The socket carries the descriptor of the memory when the task is opened, notices of frames,
credit, and releases of slabs. It is closed when the reader dies, however that happens; the worker then releases
everything that the reader held. Small frame slices are sent over the socket itself, and so is every slice for which
there is no slab: that is slower, but no reader has to wait.

The slabs serve as the reader's buffer, so no thread is needed to fill another one: the thread that waits for an element
polls the sockets (`wire.poller`) and handles all notices that have arrived.

A reader maps the memory privately and makes one base array for each frame. Elements are views of it, so a weak
reference to the base array tells when the last of them is gone. The slab is then released, and reused when no other
reader holds it. The mapping is writable but exposed as read-only: NumPy refuses to write, and a library that writes
nevertheless (torch does) gets its own copy of the page, which neither the worker nor another reader sees. Such copies
are discarded before their slab is released, otherwise the reader would see old data in the reused slab. This is why
each reader has a mapping of its own: two readers with one mapping would see each other's writes.

Pages are reserved before they are used. If the host is short of memory, the reservation fails with an error; touching a
missing page later would kill the process.
"""
