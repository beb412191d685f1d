"""The answer to a client that has read all tasks that it knows of to their end."""

from __future__ import annotations

from dsnb.dispatcher.context import Context
from dsnb.dispatcher.handlers import jobs, membership, orders, positions, rounds
from dsnb.wire.messages import EndReply, EndRequest


def read_to_end(core: Context, request: EndRequest) -> EndReply:
    """Reply whether the iteration is over for the client; if not, with the tasks that it has to read.

    Raises:
        NotFoundError: the client was counted as lost, or never existed.
    """
    client = core.state.clients.get(request.client_id)
    if client is not None and client.cancelled_by:
        return EndReply(cancelled_by=client.cancelled_by)
    if client is not None and core.state.jobs[client.job].num_consumers:
        position = positions.iteration_position(core, client.client_id)  # before its end, which may drop the tasks
        return EndReply(finished=rounds.confirm_end(core, client, request), position=position)
    over = jobs.confirm_end(core, request)
    client = core.state.clients[request.client_id]
    if not over:
        return EndReply(tasks=orders.task_infos(core, client.job, client.iteration))
    sole_client = jobs.had_single_client(core, client)
    # A sole client can leave at once. With other clients, it must first acknowledge to the workers what it consumed: on
    # its release they would give unacknowledged elements to the others.
    if len(core.state.iteration(client.job, client.iteration).clients) > 1 or request.final_report is None:
        return EndReply(finished=True, sole_client=sole_client)
    position = positions.iteration_position(core, client.client_id)
    membership.client_reported(core, request.final_report)
    return EndReply(finished=True, position=position, sole_client=sole_client)
