#!/usr/bin/env bash
# Runs once, when the data directory is created: the two databases and the roles that log in.
# Group roles are made here, so that they can be granted before `outflow init` gives them their rights.
set -euo pipefail
psql -v ON_ERROR_STOP=1 -v connector="$CONNECTOR_PASSWORD" -v accounting="$ACCOUNTING_PASSWORD" \
  -v shop="$SHOP_PASSWORD" --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
CREATE ROLE outflow_connector NOLOGIN;
CREATE ROLE outflow_producer NOLOGIN;
CREATE ROLE outflow_consumer NOLOGIN;
CREATE ROLE connector LOGIN REPLICATION PASSWORD :'connector' IN ROLE outflow_connector;
CREATE ROLE shop LOGIN PASSWORD :'shop' IN ROLE outflow_producer;
CREATE ROLE accounting LOGIN PASSWORD :'accounting' IN ROLE outflow_consumer;
CREATE DATABASE shop;
CREATE DATABASE books;
SQL
