"""Adds, lists and updates a task over HTTP, with a client that is generated from the OpenAPI document."""

import datetime
import os
import uuid

from perceptor_client import AuthenticatedClient
from perceptor_client.api.task import add_task, list_tasks, update_task
from perceptor_client.models import Error, Task, TaskParams


def must(answer):
    """Returns the answer of a call, or raises what the service says."""
    if isinstance(answer, Error):
        raise RuntimeError(f"{answer.error.status}: {answer.error.message}")
    return answer


api = AuthenticatedClient(
    base_url=os.environ["PERCEPTOR_URL"],
    token=os.environ["PERCEPTOR_TOKEN"],
)

task = Task(
    kind="sensor.poll",
    type_="NON_BLOCKING",
    begin_time=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1),
    interval="60s",
    params=TaskParams.from_dict({"sensor": "7"}),
)
# The request id makes the call safe to repeat.
added = must(add_task.sync(client=api, body=task, request_id=str(uuid.uuid4())))
print("added", added.id)

listed = must(list_tasks.sync(client=api, kind="sensor.poll"))
print("listed", *[t.id for t in listed.tasks])

updated = must(update_task.sync(added.id, client=api, body=Task(max_count="5"), update_mask="maxCount"))
print("updated", updated.max_count, updated.version)

refused = update_task.sync(added.id, client=api, body=Task(interval="soon"), update_mask="interval")
print("refused", refused.error.status, refused.error.message)
