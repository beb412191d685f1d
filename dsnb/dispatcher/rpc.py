"""The dispatcher's gRPC methods: they convert request messages to events, and results to reply messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import grpc
from msgspec.structs import replace

from dsnb.dispatcher import events as e
from dsnb.dispatcher.control import run_action
from dsnb.dispatcher.handlers import orders
from dsnb.dispatcher.handlers.datasets import known_dataset
from dsnb.dispatcher.handlers.jobs import unknown_client_error
from dsnb.dispatcher.joining import check_worker
from dsnb.dispatcher.service import Dispatcher, Message, Outbox
from dsnb.errors import DataLossError, DsnbError, InvalidArgumentError, UnavailableError
from dsnb.wire import messages as m
from dsnb.wire import methods
from dsnb.wire.blobs import split_bytes
from dsnb.wire.codec import encode
from dsnb.wire.server import Handlers, until_broken
from dsnb.wire.threads import OnDemandExecutor


class DispatcherServicer:
    """Answers the gRPC calls of clients, workers and viewers for a `Dispatcher`."""

    def __init__(self, dispatcher: Dispatcher, token: str) -> None:
        self._dispatcher = dispatcher
        self._token = token
        self._report_readers = OnDemandExecutor("dsnb-listen")

    def handlers(self) -> Handlers:
        return {
            methods.REGISTER: self.register,
            methods.GET_DATASET: self.get_dataset,
            methods.PUT_BLOB: self.put_blob,
            methods.GET_BLOB: self.get_blob,
            methods.JOIN: self.join,
            methods.POSITION: self.position,
            methods.FOLLOW: self.client_stream,
            methods.CONFIRM_END: self.confirm_end,
            methods.EVICT_TRAINER: self.evict_trainer,
            methods.FORGET: self.forget,
            methods.CONTROL: self.control,
            methods.SESSION: self.worker_stream,
            methods.GET_TASK: self.get_task,
            methods.GET_SPLITS: self.get_splits,
            methods.RECEIPT: self.receipt,
            methods.STATUS: self.status,
            methods.WATCH: self.watch,
        }

    def stop(self) -> None:
        self._report_readers.shutdown()

    # ---- datasets

    def register(self, pieces: Iterator[m.RegisterRequest], _context: grpc.ServicerContext) -> m.RegisterReply:
        request = next(pieces)
        info = request.info or m.DatasetInfo()
        definition = b"".join(piece.definition for piece in pieces)
        if len(definition) != request.nbytes:
            raise DataLossError(
                f"a definition of {request.nbytes:,} bytes arrived with {len(definition):,}",
                did="nothing was registered",
                hint="try again",
            )
        with self._dispatcher.locked():
            digest = self._dispatcher.blobs.put_definition(definition)
            registered: m.RegisterReply = self._dispatcher.handle(
                e.RegisterDataset(dataset_id=request.dataset_id, definition=digest, info=info)
            )
            if registered.difference:
                self._dispatcher.drop_unused_blobs()  # no dataset uses the definition that was sent
                return registered
            return replace(registered, missing_blobs=self._dispatcher.blobs.missing(info.blobs))

    def get_dataset(self, request: m.DatasetRequest, _context: grpc.ServicerContext) -> Iterator[m.DatasetReply]:
        """Reply with the metadata of a dataset, then with its definition in pieces."""
        with self._dispatcher.locked():
            dataset = known_dataset(self._dispatcher.core, request.dataset_id)
            definition = self._dispatcher.blobs.get(dataset.definition)
        yield m.DatasetReply(dataset_id=dataset.dataset_id, info=dataset.info)
        for part in split_bytes(definition):
            yield m.DatasetReply(definition=part)

    def put_blob(self, pieces: Iterator[m.BlobPiece], _context: grpc.ServicerContext) -> m.Empty:
        self._dispatcher.blobs.receive(pieces)
        return m.Empty()

    def get_blob(self, request: m.BlobRequest, _context: grpc.ServicerContext) -> Iterator[m.BlobPiece]:
        return self._dispatcher.blobs.send(request.digest)

    # ---- clients

    def join(self, request: m.JoinRequest, _context: grpc.ServicerContext) -> m.JoinReply:
        dispatcher = self._dispatcher
        if dispatcher.draining:
            raise UnavailableError(
                "the service is about to end: it lets its readers finish",
                did="this reader was not let in",
                hint="start it again, or read from another one",
            )
        with dispatcher.locked():
            joined: m.JoinReply = dispatcher.handle(request)
            dispatcher.client_joined(joined.client_id, joined.job_name, request.trainer_id)
            return joined

    def position(self, request: m.PositionRequest, _context: grpc.ServicerContext) -> m.IterationPosition:
        return self._dispatcher.position(request)

    def confirm_end(self, request: m.EndRequest, _context: grpc.ServicerContext) -> m.EndReply:
        return self._dispatcher.confirm_end(request)

    def forget(self, request: m.ForgetRequest, _context: grpc.ServicerContext) -> m.Empty:
        self._dispatcher.handle(request)
        return m.Empty()

    def evict_trainer(self, request: m.EvictTrainerRequest, _context: grpc.ServicerContext) -> m.Empty:
        self._dispatcher.evict_trainer(request.job_name, request.trainer_id, request.requested_by)
        return m.Empty()

    def control(self, request: m.ControlRequest, _context: grpc.ServicerContext) -> m.ControlReply:
        return m.ControlReply(state=run_action(self._dispatcher, request))

    def client_stream(
        self, reports: Iterator[m.ClientReport], context: grpc.ServicerContext
    ) -> Iterator[m.ClientUpdate]:
        """A client's control stream: receives its reports, sends tasks and losses."""
        dispatcher, first = self._dispatcher, next(reports)
        outbox: Outbox[m.ClientUpdate] = Outbox()
        with dispatcher.locked():
            # Another service may have issued this client id.
            if first.instance != dispatcher.core.state.instance or first.client_id not in dispatcher.core.state.clients:
                raise unknown_client_error(first.client_id)
            old = dispatcher.client_outboxes.get(first.client_id)
            if old is not None:
                old.messages.put(None)
            dispatcher.client_outboxes[first.client_id] = outbox
            dispatcher.client_reported(first)
            client = dispatcher.core.state.clients[first.client_id]
            if client.cancelled_by:
                outbox.messages.put(m.ClientUpdate(has_state=True, cancelled_by=client.cancelled_by))
            else:
                outbox.messages.put(
                    orders.client_update(
                        dispatcher.core, client.job, client.iteration, losses_received=first.losses_received
                    )
                )
        context.add_callback(lambda: outbox.messages.put(None))
        self._report_readers.submit(self._read_client_reports, reports, first.client_id, outbox)
        yield from _outgoing(outbox)

    def _read_client_reports(
        self, reports: Iterator[m.ClientReport], client_id: str, outbox: Outbox[m.ClientUpdate]
    ) -> None:
        try:
            for report in until_broken(reports):
                self._dispatcher.client_reported(report)
        except DsnbError:
            pass  # the client reconnects, and gets the error then if it persists
        except Exception as error:  # noqa: BLE001 - a bug: without the error the client would reconnect for ever
            outbox.messages.put(error)
        with self._dispatcher.locked(), suppress(UnavailableError):
            # Otherwise the client has left, or has opened a newer stream.
            if self._dispatcher.client_outboxes.get(client_id) is outbox:
                self._dispatcher.handle(e.ClientDisconnected(client_id=client_id))
        outbox.messages.put(None)

    # ---- workers

    def worker_stream(
        self, reports: Iterator[m.WorkerReport], context: grpc.ServicerContext
    ) -> Iterator[m.WorkerOrder]:
        """A worker's control stream: receives its reports, sends tasks and other orders."""
        dispatcher, first = self._dispatcher, next(reports)
        outbox: Outbox[m.WorkerOrder] = Outbox()
        with dispatcher.locked():
            known = first.uid in dispatcher.core.state.workers
        if not known:
            check_worker(first, context.peer(), self._token)
        with dispatcher.locked():
            old = dispatcher.worker_outboxes.get(first.uid)
            if old is not None:
                old.messages.put(None)
            dispatcher.worker_outboxes[first.uid] = outbox
            name = dispatcher.handle(e.WorkerArrives(report=first))
            dispatcher.worker_reported(first)
            dispatcher.notify_workers_of_host(first.host_id)
        context.add_callback(lambda: outbox.messages.put(None))
        self._report_readers.submit(self._read_worker_reports, reports, first.uid, outbox)
        yield m.WorkerOrder(welcome=True, name=name, instance=dispatcher.core.state.instance)
        yield from _outgoing(outbox)

    def _read_worker_reports(self, reports: Iterator[m.WorkerReport], uid: str, outbox: Outbox[m.WorkerOrder]) -> None:
        dispatcher = self._dispatcher
        try:
            for report in until_broken(reports):
                if report.draining:
                    dispatcher.handle(e.WorkerDrains(uid=uid))
                dispatcher.worker_reported(report)
                if report.leaving:
                    dispatcher.handle(e.WorkerLeaves(uid=uid))
                    break
        except DsnbError:
            pass  # the worker reconnects, and gets the error then if it persists
        except Exception as error:  # noqa: BLE001 - a bug: without the error the worker would reconnect for ever
            outbox.messages.put(error)
        with dispatcher.locked(), suppress(UnavailableError):
            # Otherwise the worker has left, or has opened a newer stream.
            if dispatcher.worker_outboxes.get(uid) is outbox:
                dispatcher.handle(e.WorkerDisconnected(uid=uid))
        outbox.messages.put(None)

    def get_task(self, request: m.TaskRequest, _context: grpc.ServicerContext) -> m.TaskOrder:
        with self._dispatcher.locked():
            return orders.requested_task_order(self._dispatcher.core, request.task_id)

    def get_splits(self, request: m.SplitsRequest, _context: grpc.ServicerContext) -> m.SplitsReply:
        reply: m.SplitsReply = self._dispatcher.handle(request)
        return reply

    # ---- viewers

    def status(self, _request: m.Empty, _context: grpc.ServicerContext) -> bytes:
        return encode(self._dispatcher.status())

    def receipt(self, request: m.ReceiptRequest, _context: grpc.ServicerContext) -> bytes:
        return encode(self._dispatcher.receipt(request))

    def watch(self, request: m.WatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Send snapshots at an interval. A viewer that reads slowly gets fewer, and blocks no other call.

        If the dispatcher is stopped, the stream ends without an error: a viewer can tell that from a broken connection.
        """
        interval = max(100, request.interval_ms) / 1000
        if request.interval_ms > 60_000:
            raise InvalidArgumentError("an interval above a minute is no watching", hint="ask for the status instead")
        stopping = self._dispatcher.stopping
        while context.is_active() and not stopping.is_set():
            began = time.monotonic()
            yield encode(self._dispatcher.status())
            while context.is_active() and (left := began + interval - time.monotonic()) > 0:
                if stopping.wait(min(left, 0.1)):
                    return


def _outgoing(outbox: Outbox[Message]) -> Iterator[Message]:
    while (message := outbox.messages.get()) is not None:
        if isinstance(message, Exception):
            raise message
        yield message
