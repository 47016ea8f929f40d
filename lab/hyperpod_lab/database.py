# SPDX-License-Identifier: Apache-2.0
"""A database outside of the cluster: a real MariaDB with TLS, as a service of the lab. It stands where RDS would."""

from __future__ import annotations

import time

from hyperpod_lab.errors import LabError
from hyperpod_lab.services import FOLDER, Services

START_SECONDS = 60
#: The authority and the certificate are made once and kept; then the server runs in its folder.
PROGRAM = f"""
set -e
cd {FOLDER}
if [ ! -e server.pem ]; then
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj "/CN=authority of $NAME" -keyout ca.key -out ca.pem
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$NAME" -keyout server.key -out server.csr
    echo "subjectAltName=DNS:$NAME" >names
    openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile names -out new.pem
    mv new.pem server.pem
fi 2>/dev/null
[ -d data/mysql ] || mariadb-install-db --no-defaults --datadir={FOLDER}/data --user=root --skip-test-db >/dev/null
exec mariadbd --no-defaults --user=root --datadir={FOLDER}/data --socket={FOLDER}/socket --port=3306 \\
    --ssl-cert={FOLDER}/server.pem --ssl-key={FOLDER}/server.key --require-secure-transport=ON \\
    --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=2 --skip-log-bin
"""


class Database:
    """The server, by the DNS name that nodes call it by."""

    def __init__(self, services: Services, host: str, *, name: str = "database") -> None:
        self.host, self.name = host, name
        self._services = services

    @property
    def ca(self) -> bytes:
        """The certificate of the authority that has signed the server's."""
        return (self._services.folder / self.name / "ca.pem").read_bytes()

    def start(self) -> None:
        self._services.start(self.name, ["sh", "-c", PROGRAM], names=[self.host], environment={"NAME": self.host})
        self._wait()

    def stop(self) -> None:
        """Nothing listens any more."""
        self._services.stop(self.name)

    def resume(self) -> None:
        self._services.resume(self.name)
        self._wait()

    def query(self, *statements: str) -> str:
        """The answers to statements of the server's administrator, a row a line."""
        client = ["mariadb", "--no-defaults", f"--socket={FOLDER}/socket", "--skip-ssl"]
        client += ["--batch", "--skip-column-names"]
        return self._services.exec(self.name, client, data=";\n".join(statements).encode()).stdout.decode()

    def account(self, user: str, password: str, database: str = "%") -> None:
        """An account from anywhere, with all rights on one database; or another password of one that is there."""
        who = f"'{user}'@'%' IDENTIFIED BY '{_escaped(password)}'"
        self.query(f"CREATE USER IF NOT EXISTS {who}", f"ALTER USER {who}")
        self.query(f"GRANT ALL PRIVILEGES ON `{database}`.* TO '{user}'@'%'")

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.query("SELECT 1")
            except LabError as error:
                if time.monotonic() > deadline:
                    said = self._services.logs(self.name)[-2000:]
                    raise LabError(f"the database does not start: {error}; {said}") from error
                time.sleep(0.25)
            else:
                return


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
