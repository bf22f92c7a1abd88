#!/usr/bin/env bash
# Writes the secrets of compose.yaml into secrets/, and .env. Files that are there already stay as they are.
# Needs openssl. Names after the command are further names of this machine in the certificate of the API:
#
#   ./prepare.sh perceptor.example.com
set -euo pipefail
cd "$(dirname "$0")"
umask 077
mkdir -p secrets
cd secrets

# secret NAME writes a random value of 32 bytes, unless there is one.
secret() { [[ -s $1 ]] || openssl rand -hex 32 >"$1"; }

secret postgres_password
secret ops_token
secret signing_secret
secret grafana_password
[[ -s dsn ]] || echo "postgres://perceptor:$(<postgres_password)@postgres:5432/perceptor?sslmode=disable" >dsn

if [[ ! -s ca.pem ]]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 3650 -subj "/CN=Perceptor compose CA" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign -keyout ca_key.pem -out ca.pem 2>/dev/null
fi
if [[ ! -s taskd_cert.pem ]]; then
  names="DNS:localhost,IP:127.0.0.1,DNS:taskd,DNS:taskd-1,DNS:taskd-2"
  for name in "$(hostname)" "$@"; do names+=",DNS:$name"; done
  openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -subj "/CN=taskd" -addext "subjectAltName=$names" \
    -addext extendedKeyUsage=serverAuth -keyout taskd_key.pem -out taskd.csr 2>/dev/null
  openssl x509 -req -in taskd.csr -CA ca.pem -CAkey ca_key.pem -CAcreateserial -days 825 -copy_extensions copyall -out taskd_cert.pem 2>/dev/null
  rm -f taskd.csr ca.srl
fi

# The containers read the files as members of the group, except the key of the CA, which no container needs.
chmod 0710 .
chmod 0640 ./*
chmod 0600 ca_key.pem
chmod 0644 ca.pem

cd ..
if [[ ! -s .env ]]; then
  # A cluster id is 16 bytes in the URL's alphabet of base64, and must not begin with a dash.
  id=$(openssl rand -base64 16 | tr '+/' 'AA' | tr -d '=')
  printf 'SECRETS_GID=%s\nKAFKA_CLUSTER_ID=%s\n' "$(id -g)" "$id" >.env
fi
