"""What a query's checkpoint says about itself: which plan, which keys, which secret it belongs to.

Beside Spark's own files a checkpoint has the file ``rillet``.  It is compared before a query is
made: whoever is refused has released nothing.  Spark reads the query's name from ``metadata`` in
the same folder; it is written here, so that workers can tell whether they run under the checkpoint
that was compared.

**Privacy.** Public: no data, and of the secret only a check from which nothing follows.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from typing import Any, Final

from pyspark.sql import SparkSession

from rillet.errors import StateError
from rillet.layout import differences
from rillet.noise import Secret, random_name
from rillet.plan import Plan
from rillet.spark.files import Folder
from rillet.spark.group import VERSION, check_of, usual_keys_in_group
from rillet.spark.shipped import Columns

_FORMAT: Final = "rillet-spark-1"
_NAME: Final = "rillet"


def belongs(
    spark: SparkSession,
    checkpoint: str,
    plan: Plan,
    secret: Secret,
    columns: Columns,
    run: str,
    keys_in_group: int | None,
    uses: str | None,
) -> tuple[str, int, int]:
    """Begin a checkpoint, or check that it is this plan's.

    Returns its identity, the keys of a group, and the partitions that groups are spread over.

    Raises
    ------
    StateError
        If it belongs to another plan, secret, version or query, or if the secret was used for
        anything else.
    """
    folder = Folder(spark, checkpoint)
    guard = plan.guard(secret, plan.tree.keys, run, uses)
    text, metadata = folder.read(_NAME), folder.read("metadata")
    facts = {
        "format": _FORMAT,
        "version": VERSION,
        "mechanism": json.loads(json.dumps(plan.layout.mechanism)),
        "keys": f"{len(plan.keys)} {hashlib.sha256(json.dumps(plan.keys).encode()).hexdigest()}",
        "columns": list(map(list, columns.named())),
        "run": run,
    }
    if text is None:
        if metadata is not None:
            raise StateError(
                f"{checkpoint}: expected an empty folder or a checkpoint of rillet, found that of "
                "another query; name a new folder"
            )
        identity = random_name(16)
        if guard is not None:
            guard.check_unused(identity)
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        size = keys_in_group or usual_keys_in_group(plan.layout, partitions)
        own = {"identity": identity, "keys_in_group": size, "partitions": partitions}
        check = check_of(plan, secret, identity)
        folder.write(_NAME, json.dumps({**facts, **own, "check": check}, indent=2))
    else:
        identity, size, partitions = _compared(checkpoint, text, facts, plan, secret, keys_in_group)
    if guard is not None:
        guard.own(identity)
    name = str(uuid.UUID(identity))
    if metadata is None:
        folder.write("metadata", json.dumps({"id": name}))
    elif json.loads(metadata).get("id") != name:
        raise StateError(f"{checkpoint}: metadata is that of another query; restore the checkpoint")
    return name, size, partitions


def _compared(
    checkpoint: str,
    text: str,
    facts: dict[str, Any],
    plan: Plan,
    secret: Secret,
    keys_in_group: int | None,
) -> tuple[str, int, int]:
    try:
        was = dict(json.loads(text))
        identity, size = str(was["identity"]), int(was["keys_in_group"])
        partitions = int(was["partitions"])
    except (ValueError, KeyError, TypeError):
        identity, size, partitions, was = "", 0, 0, {}
    whole = re.fullmatch("[0-9a-f]{32}", identity) and min(size, partitions) > 0
    if was.get("format") != _FORMAT or not whole:
        raise StateError(f"{checkpoint}: the file {_NAME} is damaged, or of another version")
    if was.get("version") != facts["version"]:
        raise StateError(
            f"{checkpoint}: expected a checkpoint of version {facts['version']}, found "
            f"{was.get('version')}; go on with the release of rillet that began it"
        )
    if was.get("mechanism") != facts["mechanism"]:
        raise StateError(
            f"{checkpoint}: this checkpoint belongs to another plan: "
            f"{differences(was.get('mechanism') or {}, facts['mechanism'])}"
        )
    for name, found in facts.items():
        if was.get(name) != found:
            raise StateError(
                f"{checkpoint}: this checkpoint was begun with other {name}: {was.get(name)}, now "
                f"{found}"
            )
    if keys_in_group not in (None, size):
        raise StateError(f"{checkpoint}: keys_in_group was {size}, is {keys_in_group}")
    if was.get("check") != check_of(plan, secret, identity):
        raise StateError(
            f"{checkpoint}: it was begun with another secret; name the file that holds that one"
        )
    return identity, size, partitions
