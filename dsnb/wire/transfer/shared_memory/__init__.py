"""Hand-over through shared memory, where client and worker are two processes of one host.

Theory of operation. A worker has one *memory*: a memfd, which has no name and goes with the last process that holds it.
It is cut into *slabs* of whole pages (`slabs`), each of which holds the body of one frame, written once for all readers
(`pool`). A reader has one Unix socket to the worker for each task (`service` is the worker's end, `endpoint` the
reader's). Over it go the descriptor of the memory when it opens, notices of frames, credit, and releases; its end tells
of the reader's death, however it died, and gives back what the reader held. What is small goes over the socket as it
is, and so does every frame for which there is no slab: that is slower, and holds nobody up.

The slabs are the reader's buffer, so it needs no thread that fills another: whoever waits for an element listens to the
sockets (`wire.ears`) and takes the notices that came meanwhile, many at a time.

A reader maps the memory privately and makes one root array for each frame. Elements are views of it, so a weak
reference to the root tells when the last of them is gone: then the slab is released, and used again when nobody else
holds it either. The mapping is writable but shown as read-only: NumPy refuses to write, and what writes all the same
(torch does) gets a copy of the page of its own, which neither the worker nor another reader sees. Such pages are
dropped before their slab is released, or the reader would find old data in it. This is why each reader has a mapping
of its own: two that shared one would see each other's writes.

Pages are reserved before they are used. A host that is short says so then, as an error; a page that is missing when it
is touched would kill the process.
"""
