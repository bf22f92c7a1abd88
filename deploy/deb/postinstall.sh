#!/bin/sh
# Creates the user, and lets it read the configuration. Starts nothing.
set -e
[ "$1" = configure ] || exit 0
systemd-sysusers perceptor.conf
chown root:perceptor /etc/perceptor/perceptor.yaml /etc/perceptor/secrets
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
