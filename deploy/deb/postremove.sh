#!/bin/sh
set -e
if [ "$1" = purge ]; then rm -rf /var/log/perceptor /etc/perceptor/secrets /etc/perceptor/migrate.env; fi
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
