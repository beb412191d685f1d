"""The remote calls of dispatcher and worker, one typed constant for each."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, Literal, TypeVar

import msgspec

from dsnb.storage.failpoints import Failpoint
from dsnb.wire import messages as m

Request = TypeVar("Request")
Reply = TypeVar("Reply")

Kind = Literal["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


class Method(msgspec.Struct, Generic[Request, Reply], frozen=True):
    """A remote call.

    Attributes:
        service: The full name of the protobuf service.
        name: The method's name in that service.
        request: The dataclass of the request messages.
        reply: The dataclass of the reply messages, or `bytes` if the receiver decodes them itself.
        kind: Whether requests and replies are single messages or streams.
        bulk: Whether replies stay unsigned, because hashing that many bytes would be too slow.
    """

    service: str
    name: str
    request: type[Request]
    reply: type[Reply]
    kind: Kind = "unary_unary"
    bulk: bool = False

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


MAX_MESSAGE_BYTES: Final = 4 << 20
"""Most bytes of a message that a server accepts; larger data are sent in pieces."""

_DISPATCHER = "dsnb.v1.Dispatcher"
_WORKER = "dsnb.v1.Worker"

HELLO = Method(_DISPATCHER, "Hello", m.Empty, m.Empty)
REGISTER = Method(_DISPATCHER, "Register", m.RegisterRequest, m.RegisterReply, "stream_unary")
GET_DATASET = Method(_DISPATCHER, "GetDataset", m.DatasetRequest, m.DatasetReply, "unary_stream")
PUT_BLOB = Method(_DISPATCHER, "PutBlob", m.BlobPiece, m.Empty, "stream_unary")
GET_BLOB = Method(_DISPATCHER, "GetBlob", m.BlobRequest, m.BlobPiece, "unary_stream")
JOIN = Method(_DISPATCHER, "Join", m.JoinRequest, m.JoinReply)
POSITION = Method(_DISPATCHER, "Position", m.PositionRequest, m.IterationPosition)
FOLLOW = Method(_DISPATCHER, "Follow", m.ClientReport, m.ClientUpdate, "stream_stream")
CONFIRM_END = Method(_DISPATCHER, "ConfirmEnd", m.EndRequest, m.EndReply)
EVICT_TRAINER = Method(_DISPATCHER, "Dismiss", m.EvictTrainerRequest, m.Empty)
CONTROL = Method(_DISPATCHER, "Control", m.ControlRequest, m.ControlReply)
FORGET = Method(_DISPATCHER, "Forget", m.ForgetRequest, m.Empty)
SESSION = Method(_DISPATCHER, "Session", m.WorkerReport, m.WorkerOrder, "stream_stream")
GET_TASK = Method(_DISPATCHER, "GetTask", m.TaskRequest, m.TaskOrder)
GET_SPLITS = Method(_DISPATCHER, "GetSplits", m.SplitsRequest, m.SplitsReply)
RECEIPT = Method(_DISPATCHER, "Receipt", m.ReceiptRequest, bytes)
STATUS = Method(_DISPATCHER, "Status", m.Empty, bytes)
WATCH = Method(_DISPATCHER, "Watch", m.WatchRequest, bytes, "unary_stream")

PING = Method(_WORKER, "Ping", m.Empty, m.Empty)
PEEK = Method(_WORKER, "Peek", m.PeekRequest, m.PeekReply)
READ = Method(_WORKER, "Read", m.ReadRequest, bytes, "stream_stream", bulk=True)

_SINGLE_REPLY: Final = tuple(
    value for value in list(globals().values()) if isinstance(value, Method) and value.kind.endswith("unary")
)
_CALLS: Final = {one.path: Failpoint(f"call {one.name}", error=None) for one in _SINGLE_REPLY}
_ANSWERS: Final = {one.path: Failpoint(f"answer {one.name}", error=None) for one in _SINGLE_REPLY}
_NOTHING: Final = nullcontext()


def call_failpoint(path: str) -> AbstractContextManager[None]:
    """The failpoint of a call with one reply, at the caller: around the request and the arrival of the reply."""
    return _CALLS.get(path, _NOTHING)


def answer_failpoint(path: str) -> AbstractContextManager[None]:
    """The failpoint of a call with one reply, at the server: around its handling, before the reply is sent."""
    return _ANSWERS.get(path, _NOTHING)
