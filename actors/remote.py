"""The one place where classes become Ray actors."""

from typing import Any

import ray

from smoe.actors.desk import Desk
from smoe.actors.engine import Engine
from smoe.actors.shard import Shard

# Never restarted by Ray: the controller decides, since one shard alone cannot come back. Calls that wait (polls,
# watches) hold a thread each, so there are more threads than callers.
_OPTIONS: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0, "max_concurrency": 16}

ShardActor = ray.remote(**_OPTIONS)(Shard)
EngineActor = ray.remote(**_OPTIONS)(Engine)
# Waits of all replicas and of the process that deployed them, none of which takes a thread.
DeskActor = ray.remote(num_cpus=0, max_restarts=0, max_concurrency=10_000)(Desk)
