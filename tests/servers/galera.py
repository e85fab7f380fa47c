"""A private Galera cluster of two MariaDB servers, both of which take writes."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from tests.servers.mariadb import Mariadb
from tests.servers.private import Missing, free_port, programs

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
SETTINGS = {
    "binlog-format": "ROW",
    "innodb-autoinc-lock-mode": "2",
    "innodb-flush-log-at-trx-commit": "0",
    "wsrep-on": "ON",
    "wsrep-provider": str(PROVIDER),
    "wsrep-cluster-name": "perdure",
    "wsrep-node-address": "127.0.0.1",
    "wsrep-sst-method": "nothing",
}


#: Transfers no files: those of the second are a copy already, and what has happened since is sent by the servers
#: themselves. The position is
#: handed over in a file.
TRANSFER = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    --role) role=$2 ;;
    --gtid) gtid=$2 ;;
  esac
  shift
done
if [ "$role" = joiner ]; then
  rm -f {place}/gtid
  echo "ready 127.0.0.1:1/nothing"
  while [ ! -s {place}/gtid ]; do sleep 0.1; done
  cat {place}/gtid
else
  echo "$gtid" > {place}/gtid.new
  mv {place}/gtid.new {place}/gtid
  echo "done $gtid"
fi
"""


class Node(Mariadb):
    """One server of a cluster."""

    def __init__(self, first: Node | None = None) -> None:
        super().__init__(durable=False)
        self._first = first
        self.group = free_port(), free_port()
        self._joins = False

    def _starting(self) -> list[str]:
        command = super()._starting()
        if not self._joins:
            return command
        listen, transfer = self.group
        options = {
            **SETTINGS,
            "server-id": 1 if self._first is None else 2,
            "wsrep-node-name": f"node{1 if self._first is None else 2}",
            "wsrep-cluster-address": "gcomm://" if self._first is None else f"gcomm://127.0.0.1:{self._first.group[0]}",
            "wsrep-provider-options": (
                f"gmcast.listen_addr=tcp://127.0.0.1:{listen};ist.recv_addr=127.0.0.1:{transfer};"
                "gcache.size=16M;gcache.page_size=16M"
            ),
        }
        command += [f"--{name}={value}" for name, value in options.items()]
        place = (self._first or self)._folder
        path = ["env", f"PATH={place}:/usr/bin:/bin"]
        return [*path, *command, "--wsrep-new-cluster"] if self._first is None else [*path, *command]

    def create(self) -> None:
        """The first begins the cluster; the second begins with its files, so that nothing has to be transferred."""
        if not PROVIDER.exists():
            programs(("garbd",), (), "galera-4")
        if not PROVIDER.exists():
            raise Missing("the Galera library was not found; install galera-4")
        if self._first is None:
            super().create()
            self.kill(signal.SIGTERM)
            self._joins = True
            script = self._folder / "wsrep_sst_nothing"
            script.write_text(TRANSFER.format(place=self._folder))
            script.chmod(0o755)
            # Once more, for the position in the cluster to be in its files.
            self.start()
            self.kill(signal.SIGTERM)
            # What a start executes would move its position past that of the copy.
            (self._folder / "init.sql").write_text("")
            return
        self._joins = True
        (self._folder / "init.sql").write_text("")
        shutil.copytree(self._first._data, self._data, dirs_exist_ok=True)
        if self._as:
            for path in (self._folder, *self._folder.rglob("*")):
                shutil.chown(path, self._as["user"], self._as["group"])


def cluster() -> list[Node]:
    """Two servers that have joined."""
    first = Node()
    second = Node(first)
    try:
        first.create()
        second.create()
        first.start()
        second.start()
    except BaseException:
        for node in (first, second):
            node.remove()
        raise
    return [first, second]
