#!/bin/bash
# The entry point of the stand-in for the official PostgreSQL image; see base-images.sh.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
  chown postgres: "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
user=${POSTGRES_USER:-postgres}
if [ "$1" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -D "$PGDATA" -U "$user" -E UTF8 --auth-local=trust --auth-host=scram-sha-256 --pwfile=<(echo "$POSTGRES_PASSWORD")
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  if [ "${POSTGRES_DB:-postgres}" != postgres ]; then
    echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -j -D "$PGDATA" postgres
  fi
fi
if [ "$1" = postgres ]; then
  set -- "$@" -c listen_addresses='*'
fi
exec "$@"
