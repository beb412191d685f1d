"""Transfer between hosts over a plain TCP or TLS connection of its own, one for each (client, task).

The messages are those of the gRPC transfer, with a header of fixed size before each. The worker's buffers are sent as
they are, and the reader receives a large message into an array that its elements become views of: the data are copied
only by the two systems' kernels. gRPC copies them several times, and takes four times as much of the processors.

| module | contents |
|---|---|
| `messages.py` | the header, the kinds of messages, and how they are received |
| `connection.py`, `tls.py` | a connected socket, plain or with TLS, that two threads use |
| `client.py` | the reader's end |
| `server.py` | the worker's end |

A connection begins as a call of gRPC does (`wire/security`). The reader sends a proof that it knows the service's
token, and its first request. The worker checks the proof and answers with its own, and only then reads the request. The
reader sends and accepts nothing else before the worker's proof. All requests of the reader are signed; elements and
notices are not, as over gRPC. With TLS both sides present the service's certificate.
"""
