"""The dispatcher's calls: messages to events and back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import suppress

import grpc

from dsnb.dispatcher import events as e
from dsnb.dispatcher import jobs, positions
from dsnb.dispatcher.control import control
from dsnb.dispatcher.datasets import known_dataset
from dsnb.dispatcher.desk import Desk, Mailbox, Message
from dsnb.dispatcher.jobs import unknown_client
from dsnb.errors import DataLossError, DsnbError, InvalidArgumentError, NotFoundError, UnavailableError
from dsnb.wire import messages as m
from dsnb.wire import methods
from dsnb.wire.blobs import parts_of
from dsnb.wire.codec import encode
from dsnb.wire.server import Handlers, until_broken
from dsnb.wire.threads import OnDemandExecutor


class DispatcherService:
    """Answers calls for a desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._listeners = OnDemandExecutor("dsnb-listen")

    def handlers(self) -> Handlers:
        return {
            methods.REGISTER: self.register,
            methods.GET_DATASET: self.get_dataset,
            methods.PUT_BLOB: self.put_blob,
            methods.GET_BLOB: self.get_blob,
            methods.JOIN: self.join,
            methods.POSITION: self.position,
            methods.FOLLOW: self.follow,
            methods.CONFIRM_END: self.confirm_end,
            methods.DISMISS: self.dismiss,
            methods.FORGET: self.forget,
            methods.CONTROL: self.control,
            methods.SESSION: self.session,
            methods.GET_TASK: self.get_task,
            methods.GET_SPLITS: self.get_splits,
            methods.STATUS: self.status,
            methods.WATCH: self.watch,
        }

    def stop(self) -> None:
        self._listeners.shutdown()

    # ---- datasets

    def register(self, pieces: Iterator[m.RegisterRequest], _context: grpc.ServicerContext) -> m.RegisterReply:
        request = next(pieces)
        definition = b"".join(piece.definition for piece in pieces)
        if len(definition) != request.nbytes:
            raise DataLossError(
                f"a definition of {request.nbytes:,} bytes arrived with {len(definition):,}",
                did="nothing was registered",
                hint="try again",
            )
        with self._desk.locked():
            digest = self._desk.blobs.put_definition(definition)
            registered: e.Registered = self._desk.handle(
                e.RegisterDataset(
                    dataset_id=request.dataset_id,
                    fingerprint=request.fingerprint,
                    definition=digest,
                    blobs=request.blobs,
                    element_spec=request.element_spec,
                    cardinality=request.cardinality,
                    compression=request.compression,
                    pipeline=request.pipeline,
                    providers=tuple((provider.source, provider.count) for provider in request.providers),
                    unsplittable=request.unsplittable,
                    files=request.files,
                    no_files=request.no_files,
                    hinted=request.hinted,
                    inexact=request.inexact,
                )
            )
            if registered.kept:
                self._desk.keep_blobs_of_datasets()  # the definition that came is of none
                return m.RegisterReply(dataset_id=registered.dataset_id, kept=registered.kept)
            missing = self._desk.blobs.missing(request.blobs)
            return m.RegisterReply(dataset_id=registered.dataset_id, missing=missing)

    def get_dataset(self, request: m.DatasetRequest, _context: grpc.ServicerContext) -> Iterator[m.DatasetReply]:
        """What is known of a dataset, then its definition in pieces."""
        with self._desk.locked():
            dataset = known_dataset(self._desk.core, request.dataset_id)
            definition = self._desk.blobs.get(dataset.definition)
            known = m.DatasetReply(
                dataset_id=dataset.dataset_id,
                blobs=dataset.blobs,
                element_spec=dataset.element_spec,
                cardinality=dataset.cardinality,
                compression=dataset.compression,
                pipeline=dataset.pipeline,
                unsplittable=dataset.unsplittable,
                files=dataset.files,
                no_files=dataset.no_files,
                hinted=dataset.hinted,
            )
        yield known
        for part in parts_of(definition):
            yield m.DatasetReply(definition=part)

    def put_blob(self, pieces: Iterator[m.BlobPiece], _context: grpc.ServicerContext) -> m.Empty:
        self._desk.blobs.receive(pieces)
        return m.Empty()

    def get_blob(self, request: m.BlobRequest, _context: grpc.ServicerContext) -> Iterator[m.BlobPiece]:
        return self._desk.blobs.send(request.digest)

    # ---- clients

    def join(self, request: m.JoinRequest, _context: grpc.ServicerContext) -> m.JoinReply:
        desk = self._desk
        if desk.draining:
            raise UnavailableError(
                "the service is about to end: it lets its readers finish",
                did="this reader was not let in",
                hint="start it again, or read from another one",
            )
        with desk.locked():
            joined: e.Joined = desk.handle(
                e.Join(
                    dataset_id=request.dataset_id,
                    job_name=request.job_name,
                    mode=request.mode,
                    cached=request.cached,
                    trainer_id=request.trainer_id,
                    compression=request.compression,
                    target_workers=request.target_workers,
                    repetition=request.repetition,
                    whole=request.whole,
                    entropy=secrets.randbits(63),
                    position=request.position,
                    consumers=request.consumers,
                    consumer=request.consumer,
                    unfinished=request.unfinished,
                    rejoins=request.rejoins,
                    iteration=request.iteration,
                    holdings=request.holdings,
                )
            )
            desk.ledger.client_joined(joined.client_id, joined.job, request.trainer_id)
            return m.JoinReply(
                client_id=joined.client_id,
                job_name=joined.job,
                iteration=joined.number,
                tasks=desk.task_infos(joined.job, joined.number),
                finished=joined.finished,
                readers=joined.readers,
                absent=joined.absent,
                losses=joined.losses,
                instance=desk.core.state.instance,
                report_ms=desk.config.client_report_ms,
                paused_by=joined.paused_by,
                consumer_timeout_ms=desk.config.consumer_timeout_ms,
                client_timeout_ms=desk.config.client_timeout_ms,
            )

    def position(self, request: m.PositionRequest, _context: grpc.ServicerContext) -> m.PassPosition:
        with self._desk.locked():
            if request.client_id not in self._desk.core.state.clients:
                raise unknown_client(request.client_id)
            return positions.tell(self._desk.core, request.client_id)

    def confirm_end(self, request: m.EndRequest, _context: grpc.ServicerContext) -> m.EndReply:
        with self._desk.locked():
            known = self._desk.core.state.clients.get(request.client_id)
            if known is not None and known.cancelled:
                return m.EndReply(cancelled_by=known.cancelled)
            elements = request.farewell.elements if request.farewell is not None else -1
            finished = self._desk.handle(e.EndSeen(client_id=request.client_id, ended=request.ended, elements=elements))
            client = self._desk.core.state.clients[request.client_id]
            if not finished:
                return m.EndReply(tasks=self._desk.task_infos(client.job, client.number))
            iteration = self._desk.core.state.iteration(client.job, client.number)
            sole = jobs.read_alone(self._desk.core, client)
            # Where others read, the workers must hear first from this one what it consumed, and then that it is gone.
            if len(iteration.clients) == 1 and request.farewell is not None:
                position = positions.tell(self._desk.core, request.client_id)
                self._desk.client_reported(request.farewell)
                return m.EndReply(finished=True, position=position, sole=sole)
            return m.EndReply(finished=True, sole=sole)

    def forget(self, request: m.ForgetRequest, _context: grpc.ServicerContext) -> m.Empty:
        forgotten = e.ForgetDataset(dataset_id=request.dataset_id) if request.dataset_id else None
        self._desk.handle(forgotten or e.ForgetJob(name=request.job_name))
        return m.Empty()

    def dismiss(self, request: m.DismissRequest, _context: grpc.ServicerContext) -> m.Empty:
        self._desk.dismiss(request.job_name, request.trainer_id)
        return m.Empty()

    def control(self, request: m.ControlRequest, _context: grpc.ServicerContext) -> m.ControlReply:
        return m.ControlReply(state=control(self._desk, request))

    def follow(self, reports: Iterator[m.ClientReport], context: grpc.ServicerContext) -> Iterator[m.ClientUpdate]:
        """A client's control stream: reports come up, tasks and losses go down."""
        desk, first = self._desk, next(reports)
        mailbox: Mailbox[m.ClientUpdate] = Mailbox()
        with desk.locked():
            if first.instance != desk.core.state.instance:  # another service gave it its number
                raise unknown_client(first.client_id)
            desk.handle(e.ClientSeen(client_id=first.client_id))
            old = desk.clients.get(first.client_id)
            if old is not None:
                old.messages.put(None)
            desk.clients[first.client_id] = mailbox
            desk.client_reported(first)
            client = desk.core.state.clients[first.client_id]
            if client.cancelled:
                mailbox.messages.put(m.ClientUpdate(state=True, cancelled_by=client.cancelled))
            else:
                mailbox.messages.put(desk.update(client.job, client.number, losses_heard=first.losses_heard))
        context.add_callback(lambda: mailbox.messages.put(None))
        self._listeners.submit(self._listen_to_client, reports, first.client_id, mailbox)
        yield from _until_none(mailbox)

    def _listen_to_client(
        self, reports: Iterator[m.ClientReport], client_id: str, mailbox: Mailbox[m.ClientUpdate]
    ) -> None:
        try:
            for report in until_broken(reports):
                self._desk.client_reported(report)
        except DsnbError:
            pass  # told when it comes again, if it lasts
        except Exception as error:  # noqa: BLE001 - a bug: told, or it would come again and again
            mailbox.messages.put(error)
        with self._desk.locked(), suppress(UnavailableError):
            if self._desk.clients.get(client_id) is mailbox:  # it has not said goodbye
                self._desk.handle(e.ClientBroken(client_id=client_id))
        mailbox.messages.put(None)

    # ---- workers

    def session(self, reports: Iterator[m.WorkerReport], context: grpc.ServicerContext) -> Iterator[m.WorkerOrder]:
        """A worker's control stream: statistics come up, tasks go down."""
        desk, first = self._desk, next(reports)
        mailbox: Mailbox[m.WorkerOrder] = Mailbox()
        with desk.locked():
            old = desk.workers.get(first.uid)
            if old is not None:
                old.messages.put(None)
            desk.workers[first.uid] = mailbox
            name = desk.handle(
                e.WorkerArrives(
                    uid=first.uid,
                    name=first.name,
                    address=first.address,
                    isolation=first.isolation,
                    pid=first.pid,
                    tasks=tuple(task.task_id for task in first.tasks),
                    grants=_grants(first),
                )
            )
            desk.worker_reported(first)
        context.add_callback(lambda: mailbox.messages.put(None))
        self._listeners.submit(self._listen_to_worker, reports, first.uid, mailbox)
        yield m.WorkerOrder(welcome=True, name=name, instance=desk.core.state.instance)
        yield from _until_none(mailbox)

    def _listen_to_worker(self, reports: Iterator[m.WorkerReport], uid: str, mailbox: Mailbox[m.WorkerOrder]) -> None:
        desk = self._desk
        try:
            for report in until_broken(reports):
                if report.draining:
                    desk.handle(e.WorkerDrains(uid=uid))
                desk.worker_reported(report)
                if report.leaving:
                    desk.handle(e.WorkerLeaves(uid=uid))
                    break
        except DsnbError:
            pass  # told when it comes again, if it lasts
        except Exception as error:  # noqa: BLE001 - a bug: told, or it would come again and again
            mailbox.messages.put(error)
        with desk.locked(), suppress(UnavailableError):
            if desk.workers.get(uid) is mailbox:  # it has not said goodbye
                desk.handle(e.WorkerBroken(uid=uid))
        mailbox.messages.put(None)

    def get_task(self, request: m.TaskRequest, _context: grpc.ServicerContext) -> m.TaskOrder:
        with self._desk.locked():
            task = self._desk.core.state.tasks.get(request.task_id)
            if task is None:
                raise NotFoundError(f"the task {request.task_id} is unknown", did="it may have ended")
            return self._desk.task_order(task)

    def get_splits(self, request: m.SplitsRequest, _context: grpc.ServicerContext) -> m.SplitsReply:
        splits: e.Splits = self._desk.handle(
            e.SplitsRequested(
                task_id=request.task_id,
                incarnation=request.incarnation,
                provider=request.provider,
                repetition=request.repetition,
                cursor=request.cursor,
                want=request.want,
            )
        )
        return m.SplitsReply(first=splits.first, end=splits.end, done=splits.done)

    # ---- viewers

    def status(self, _request: m.Empty, _context: grpc.ServicerContext) -> bytes:
        return encode(self._desk.status())

    def watch(self, request: m.WatchRequest, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Snapshots at an interval; a viewer that reads slowly gets fewer, and holds nobody up."""
        interval = max(100, request.interval_ms) / 1000
        if request.interval_ms > 60_000:
            raise InvalidArgumentError("an interval above a minute is no watching", hint="ask for the status instead")
        while context.is_active():
            began = time.monotonic()
            yield encode(self._desk.status())
            while context.is_active() and (left := began + interval - time.monotonic()) > 0:
                time.sleep(min(left, 0.1))


def _grants(report: m.WorkerReport) -> tuple[e.Granted, ...]:
    return tuple(
        e.Granted(
            task_id=task.task_id,
            provider=grant.provider,
            repetition=grant.repetition,
            cursor=grant.cursor,
            first=grant.first,
            end=grant.end,
        )
        for task in report.tasks
        for grant in task.grants
    )


def _until_none(mailbox: Mailbox[Message]) -> Iterator[Message]:
    while (message := mailbox.messages.get()) is not None:
        if isinstance(message, Exception):
            raise message
        yield message
